"""Brings what the rewrites are for into this process, so that their state can be told."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os

import patcher
from patcher import PatchError
from patcher.cli import terminal
from replacements.packing.texts import one_line


def load() -> dict[str, str]:
    """Import every module that a rewrite waits for, of packages that are installed.

    A rewrite that cannot be made raises out of the import; its reason is in ``patcher.status()`` and is not repeated.

    Returns:
        For each module that could not be imported, why.
    """
    failed = {}
    modules = {rewrite.target.partition(":")[0]: rewrite.package for rewrite in patcher.status().rewrites}
    with terminal.err().status("importing " + ", ".join(sorted(set(modules.values())))):
        for module, package in modules.items():
            if importlib.util.find_spec(package) is None:
                continue
            try:
                # What libraries print while they are imported is no part of a command's output.
                with contextlib.redirect_stdout(io.StringIO()):
                    importlib.import_module(module)
            except PatchError:
                pass
            except Exception as error:
                failed[module] = one_line(error)
    return failed


def hush() -> None:
    """Keep the notices and progress bars of libraries that are not imported yet out of a command's output."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
