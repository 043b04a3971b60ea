"""Runs the user's script in this process, as ``python SCRIPT`` or ``python -m MODULE`` would."""

from __future__ import annotations

import importlib.util
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
        """Raise CliError if there is no such script or module."""
        if not self.module:
            if not os.path.exists(self.name):
                raise CliError(f"no such script: {self.name}", f"patcher run -m {self.name}, if it is a module")
            return
        self._set_path()
        try:
            found = importlib.util.find_spec(self.name) is not None
        except ModuleNotFoundError:  # a parent package is missing
            found = False
        if not found:
            raise CliError(f"no module named {self.name}", "patcher run SCRIPT, without -m, for a file")

    def run(self) -> None:
        """Run it. Whatever it raises, SystemExit and KeyboardInterrupt included, comes out of here."""
        sys.argv = [self.name, *self.arguments]
        self._set_path()
        if self.module:
            runpy.run_module(self.name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(self.name, run_name="__main__")

    def _set_path(self) -> None:
        """The first place to import from: the current folder for a module, the script's folder for a script."""
        if getattr(sys.flags, "safe_path", False):  # python -P puts neither there
            return
        if self.module:
            sys.path[0] = os.getcwd()
        elif os.path.isfile(self.name):  # runpy puts folders and zip files on the path itself
            sys.path[0] = os.path.dirname(os.path.realpath(self.name))


class Launch(BaseException):
    """Carries a target out of the command parser, so that the script runs under nobody's exception handling."""

    def __init__(self, target: Target):
        super().__init__(target.name)
        self.target = target
