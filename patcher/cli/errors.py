"""Errors a command ends with, and the exit codes of the command line."""

from __future__ import annotations

OK = 0
"""The command did what was asked, and the answer is yes."""
NO = 1
"""The command ran to its end, and the answer is no: not isolated, or something needs mending."""
FAILED = 2
"""The command could not do its work: bad usage, a missing file, an unexpected error."""


class CliError(Exception):
    """An error the user can act on.

    Args:
        message: what is wrong, in one line.
        remedy: what to do about it, usually a command.
    """

    def __init__(self, message: str, remedy: str | None = None):
        super().__init__(f"{message}; try: {remedy}" if remedy else message)
        self.message = message
        self.remedy = remedy
