"""The environment variables: what each is for, what it may be, and the one way in which all are read."""

from __future__ import annotations

import os
from dataclasses import dataclass

_WORDS = {"1": ("true", "yes", "on"), "0": ("false", "no", "off")}


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    Attributes:
        values: what it may be; ``0`` and ``1`` also as words: no and yes, false and true, off and on.
        default: its value while it is unset or empty.
        meaning: what it does.
    """

    values: tuple[str, ...]
    default: str
    meaning: str


VARIABLES = {
    "PATCHER_DISABLE": Variable(("0", "1"), "0", "`1`: the patch does nothing"),
    "PATCHER_HYBRID_PACKING": Variable(("0", "1"), "1", "`0` trains hybrid models padded"),
    "PATCHER_ON_UNSAFE": Variable(("pad", "raise"), "pad", "what to do when packing was asked for and is not safe"),
    "PATCHER_ZOO": Variable(("0", "1"), "0", "`1` has TRL's trainer prepare its data with unsloth_zoo's function"),
}


class SettingError(ValueError):
    """An environment variable has a value that means nothing."""


def read(name: str) -> str:
    """The value of a variable as the table has it, whatever its case and the space around it.

    Raises:
        SettingError: it has none of its values. The text lists them.
    """
    variable = VARIABLES[name]
    given = os.environ.get(name, "").strip().lower() or variable.default
    for value in variable.values:
        if given == value or given in _WORDS.get(value, ()):
            return value
    allowed = f"{', '.join(variable.values)}. Unset, it is {variable.default}"
    raise SettingError(f"{name}={given!r} is not a value it can take. Set it to one of: {allowed}.")


def is_on(name: str) -> bool:
    """Whether a variable that may be ``0`` or ``1`` is ``1``.

    Raises:
        SettingError: it is neither.
    """
    return read(name) == "1"
