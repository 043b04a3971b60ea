"""The record of what was rewritten, and the lock under which it changes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from patcher._rewrite import Rewrite

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType

    from patcher._places import Swap

WAITING = "waiting"
APPLIED = "applied"
COVERED = "covered"
LEFT_ALONE = "left alone"
SKIPPED = "skipped"
FAILED = "failed"
REVERTED = "reverted"
STUCK = "stuck"

MEANING = {
    WAITING: "its module is not imported yet",
    APPLIED: "in place",
    COVERED: "in place, under something that another library has since put on top",
    LEFT_ALONE: "not touched, because a library that owns the function is loaded",
    SKIPPED: "optional, and could not be made",
    FAILED: "could not be made",
    REVERTED: "taken back",
    STUCK: "could not be taken back: something stands on top of it, or another copy of the engine made it",
}

lock = threading.RLock()


@dataclass
class Record:
    """What became of one rewrite.

    Attributes:
        rewrite: the rewrite.
        state: one of the names in ``MEANING``.
        version: version of the package, or None when unknown.
        edits: each edit's name and outcome, as in ``Edited.matched``.
        swaps: what was exchanged.
        original: the function as upstream made it.
        made: the function that took its place; None if another copy of the engine made it.
        outside: names in other packages that still hold the original.
        reason: why it is not applied; of one that is, what to know of it, if anything.
    """

    rewrite: Rewrite
    state: str
    version: str | None = None
    edits: Sequence[tuple[str, int | str]] = ()
    swaps: list[Swap] = field(default_factory=list)
    original: FunctionType | None = None
    made: FunctionType | None = None
    outside: list[str] = field(default_factory=list)
    reason: str = ""

    @property
    def active(self) -> bool:
        """Whether the rewrite was put in place and not taken back."""
        return self.state == APPLIED

    @property
    def seen_state(self) -> str:
        """The state as it is now: what others did to the places counts."""
        return COVERED if self.active and not all(swap.holds for swap in self.swaps) else self.state


_records: dict[str, Record] = {}


def get(name: str) -> Record | None:
    """The record of the rewrite of that name."""
    return _records.get(name)


def put(record: Record) -> None:
    """Keeps a record in place of an earlier one of the same rewrite."""
    _records[record.rewrite.name] = record


def records() -> list[Record]:
    """All records, oldest first."""
    return list(_records.values())
