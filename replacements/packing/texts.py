"""Errors of others, as part of a sentence."""

from __future__ import annotations


def one_line(error: BaseException, most: int | None = None) -> str:
    """An exception in one line, its type first.

    Args:
        error: The exception.
        most: Characters of the line; all of them by default.
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:most]
