"""Brings what the rewrites are for into this process, so that their state can be told."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
from dataclasses import dataclass, field

import patcher
from patcher import PatchError
from patcher.cli import terminal


@dataclass
class Loaded:
    """What came of importing the modules of the rewrites.

    Attributes:
        failed: for each module that is installed and could not be imported, why.
        absent: packages that are not installed.
    """

    failed: dict[str, str] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)


def load() -> Loaded:
    """Import every module that a rewrite waits for.

    A rewrite that cannot be made raises out of the import; its reason is in ``patcher.status()`` and is not repeated.
    """
    loaded = Loaded()
    modules = {rewrite.target.partition(":")[0]: rewrite.package for rewrite in patcher.status().rewrites}
    with terminal.err().status("importing " + ", ".join(sorted(set(modules.values())))):
        for module, package in modules.items():
            if importlib.util.find_spec(package) is None:
                loaded.absent.add(package)
                continue
            try:
                # What libraries print while they are imported is no part of a command's output.
                with contextlib.redirect_stdout(io.StringIO()):
                    importlib.import_module(module)
            except PatchError:
                pass
            except Exception as error:
                loaded.failed[module] = f"{type(error).__name__}: {error}"
    return loaded


def hush() -> None:
    """Keep the notices and progress bars of libraries that are not imported yet out of a command's output."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
