"""What the commands share at the terminal: consoles, progress, errors."""

from __future__ import annotations

import json
import sys
import traceback
from typing import TYPE_CHECKING, Any

from patcher import PatchError
from patcher.cli.errors import CliError
from replacements.packing.texts import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def out() -> Console:
    """The console for results: standard output, plain when it is not a terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """The console for progress and notices: standard error, so that results can be piped."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def progress() -> Progress:
    """A progress display on standard error; silent when that is not a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = err()
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,  # the processor is for the training
        disable=not console.is_terminal,
    )


def print_json(data: Any) -> None:
    """Write one JSON document to standard output."""
    json.dump(data, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")


debug = False
"""Whether an error shows its traceback; set by ``--debug``."""


def fail(error: Exception) -> None:
    """Write an error to standard error: one line, or its traceback under ``--debug``."""
    if debug:
        traceback.print_exception(error)
        return
    print(f"patcher: {_line(error)}", file=sys.stderr)


def _line(error: Exception) -> str:
    if isinstance(error, CliError):
        return str(error)
    cause: BaseException | None = error
    while cause is not None:  # a lazy import wraps what it could not import
        if isinstance(cause, PatchError):
            return f"{str(cause).partition(chr(10))[0]}; try: patcher status"
        cause = cause.__cause__ or cause.__context__
    return f"{one_line(error)} (--debug shows where)"
