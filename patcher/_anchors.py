"""An anchor as data: a pattern with holes and the nesting level that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

from patcher._errors import RewriteError

LEVELS = ("body", "any", "keyword")


@dataclass(frozen=True)
class Anchor:
    """A Python statement or expression with holes, compared by meaning and not by layout.

    Attributes:
        pattern: source of one statement or one expression. ``$NAME`` stands for one expression (the same name
            twice for the same expression), ``$...`` or ``$...NAME`` for any number of arguments or items, and a
            suite ``...`` for any suite together with the clauses after it: ``if $TEST: ...`` matches by header.
        level: ``"body"`` for a direct child of the function body, ``"any"`` for any depth of the function itself
            (nested functions and classes are other functions), ``"keyword"`` for a keyword argument of a call,
            written ``name=value``.
        only: with level ``"body"``, what matches deeper in the function counts too, as a match too many.
    """

    pattern: str
    level: str = "any"
    only: bool = False

    def __post_init__(self):
        if self.level not in LEVELS:
            raise RewriteError(f"anchor {self.pattern!r}: level must be one of {LEVELS}, not {self.level!r}")
