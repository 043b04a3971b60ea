"""Runs the user's script in this process, as ``python SCRIPT`` or ``python -m MODULE`` would."""

from __future__ import annotations

import os
import runpy
import sys
from dataclasses import dataclass

from patcher.cli.errors import CliError


@dataclass(frozen=True)
class Target:
    """A script and its arguments.

    Attributes:
        name: path of a script, a folder or zip file with ``__main__.py``, or the name of a module.
        arguments: ``sys.argv[1:]`` as the script sees it.
        module: ``name`` is a module.
    """

    name: str
    arguments: tuple[str, ...] = ()
    module: bool = False

    def check(self) -> None:
        """Raise CliError if there is no such script."""
        if not self.module and not os.path.exists(self.name):
            raise CliError(f"no such script: {self.name}", f"patcher run -m {self.name}, if it is a module")

    def run(self) -> None:
        """Run it. Whatever it raises, SystemExit and KeyboardInterrupt included, comes out of here."""
        sys.argv = [self.name, *self.arguments]
        if self.module:
            sys.path[0] = os.getcwd()
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            if os.path.isfile(self.name):
                # runpy puts folders and zip files on the path itself.
                sys.path[0] = os.path.dirname(os.path.realpath(self.name))
            runpy.run_path(self.name, run_name="__main__")


class Launch(BaseException):
    """Carries a target out of the command parser, so that the script runs under nobody's exception handling."""

    def __init__(self, target: Target):
        super().__init__(target.name)
        self.target = target
