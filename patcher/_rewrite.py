"""A rewrite as data: which function, which edits, what the injected text may call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from patcher._anchors import Anchor
from patcher._errors import RewriteError

ACTIONS = ("before", "after", "replace", "append", "prepend")
_STRUCTURAL = ("append", "prepend")

#: What became of an edit that was not made by an anchor alternative, which is said by its index.
ALREADY = "already there"
MISSED = "missed"
Outcome = int | str

_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.<>]*\Z")


@dataclass(frozen=True)
class Edit:
    """One change to a function.

    Attributes:
        name: name within the rewrite, used in errors and in the ledger.
        anchors: alternatives, newest first. The first that matches exactly once is used.
        action: ``"before"``, ``"after"`` or ``"replace"`` the anchor; ``"append"`` at the end or ``"prepend"`` at
            the start of the function body, both without an anchor.
        text: Python to put there. ``$NAME`` repeats what the anchor's hole matched.
        required: whether a miss is an error. An optional edit that misses warns once.
        lost: what the user loses when an optional edit misses.
        done: anchors that mean that the result is already there. The edit's own text means it too: anywhere if it
            calls ``__patcher__``, else where the edit would put it. A replacement with holes and without a call
            cannot be told from upstream's own text once its anchor is gone, and needs this.
    """

    name: str
    anchors: tuple[Anchor, ...] = ()
    action: str = "before"
    text: str = ""
    required: bool = True
    lost: str = ""
    done: tuple[Anchor, ...] = ()

    def __post_init__(self):
        if self.action not in ACTIONS:
            raise RewriteError(f"edit {self.name!r}: action must be one of {ACTIONS}, not {self.action!r}")
        if self.structural and self.anchors:
            raise RewriteError(f"edit {self.name!r}: {self.action!r} takes no anchor")
        if not self.structural and not self.anchors:
            raise RewriteError(f"edit {self.name!r}: {self.action!r} needs an anchor")
        if not self.text.strip() and not (self.action == "replace" and self.done):
            raise RewriteError(f"edit {self.name!r}: no text; a deletion is a 'replace' that says what is `done`")

    @property
    def structural(self) -> bool:
        """Whether the edit goes by the function's start or end and has no anchor."""
        return self.action in _STRUCTURAL


@dataclass(frozen=True)
class Rewrite:
    """One upstream function and the edits that it gets.

    Attributes:
        name: unique name of the rewrite.
        package: import name of the package that holds the function.
        target: ``module:qualified.name`` of the function.
        edits: the edits, in order.
        calls: what injected text may call: ``{"choose": "module:function"}`` makes ``__patcher__.choose(...)`` call
            that function, imported at first use.
        required: whether a rewrite that cannot be made is an error. An optional one warns once and is left out.
        aliases: other places that may hold the same function: ``module:attribute`` or ``module:NAME[key]``.
        unless: modules whose presence means that the function is to be left alone.
        lost: what the user loses when an optional rewrite cannot be made.
        option: name of the option that asks for the rewrite; empty for one that is always made.
        note: what to know of the rewrite while it is in place, for the status.
        since: oldest release of the package that it is to fit, for who checks releases; empty for all of them.
        shows_upstream: whether who asks for the function's source is shown upstream's text and not the edited one.
    """

    name: str
    package: str
    target: str
    edits: tuple[Edit, ...]
    calls: Mapping[str, str] = field(default_factory=dict)
    required: bool = True
    aliases: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    lost: str = ""
    option: str = ""
    note: str = ""
    since: str = ""
    shows_upstream: bool = False

    def __post_init__(self):
        for place in (self.target, *self.calls.values()):
            if not _TARGET.match(place):
                raise RewriteError(f"rewrite {self.name!r}: {place!r} is not of the form 'module:qualified.name'")
        names = [edit.name for edit in self.edits]
        if not names or len(set(names)) != len(names):
            raise RewriteError(f"rewrite {self.name!r}: edits need names that differ, got {names}")

    @property
    def module(self) -> str:
        """Name of the module that holds the function."""
        return self.target.partition(":")[0]

    @property
    def qualname(self) -> str:
        """Qualified name of the function within its module."""
        return self.target.partition(":")[2]
