"""The error of a check or a verification that cannot be made."""

from __future__ import annotations


class CannotCheckError(ValueError):
    """There is nothing to check: no such model, no way to it, or it is none.

    Args:
        message: What is wrong, in one line.
        remedy: What to do about it.
    """

    def __init__(self, message: str, remedy: str):
        super().__init__(f"{message}; try: {remedy}")
        self.message = message
        self.remedy = remedy
