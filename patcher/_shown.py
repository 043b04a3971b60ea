"""Registers edited source with linecache, so that tracebacks, inspect and debuggers show the lines that run."""

from __future__ import annotations

import io
import linecache


def filename(target: str) -> str:
    """The pseudo file of a rewritten function.

    The angle brackets keep linecache from asking the module's loader, which would answer with the upstream text.
    """
    return f"<patcher {target}>"


def register(name: str, text: str) -> None:
    """Puts the text into linecache; without a modification time ``linecache.checkcache`` leaves it alone."""
    # not splitlines(), which also cuts at form feeds and would shift the lines after one
    lines = io.StringIO(text.replace("\r\n", "\n").replace("\r", "\n")).readlines()
    linecache.cache[name] = (len(text), None, lines, name)


def forget(name: str) -> None:
    """Takes the text out again."""
    linecache.cache.pop(name, None)
