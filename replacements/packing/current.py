"""Which documents the row of the running forward holds.

One value per thread: the scope of the innermost forward that carries boundaries. The model's hooks open and close
it, the kernel wrappers read it, and a recomputation under gradient checkpointing opens it again.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replacements.kernels.segments import Segments

_current: ContextVar[Scope | None] = ContextVar("patcher_packing_scope", default=None)


@dataclass(eq=False)
class Scope:
    """The boundaries of one forward, and what used them.

    Attributes:
        owner: The runtime whose hooks opened the scope.
        door: The module whose hook opened it; only that module's hook closes it.
        segments: The documents, or `None` when every row is one document and nothing has to be kept apart.
        rows: Batch size of the row the boundaries describe.
        length: Tokens per row, `T`.
        mixer: The mixer that is running, as its hook says.
        used: For each mixer that ran, the ops in which it used the boundaries.
    """

    owner: Any
    door: Any
    segments: Segments | None
    rows: int
    length: int
    previous: Scope | None = None
    mixer: Any = None
    used: dict[Any, set[str]] = field(default_factory=dict)

    def record(self, op: str) -> None:
        """Notes that the running mixer used the boundaries in `op`."""
        if self.mixer is not None:
            self.used.setdefault(self.mixer, set()).add(op)


def current() -> Scope | None:
    """The scope of the innermost running forward in this thread, or `None`."""
    return _current.get()


def enter(scope: Scope) -> None:
    """Makes `scope` current until `leave` is called for its door."""
    scope.previous = _current.get()
    _current.set(scope)


def leave(door: Any) -> Scope | None:
    """Closes the scope that `door` opened, with everything left open inside it, and returns it.

    A forward that was interrupted inside `door` may have left inner scopes behind; they go as well. A door that
    opened nothing (its own pre-hook failed) closes nothing.
    """
    scope = _current.get()
    while scope is not None and scope.door is not door:
        scope = scope.previous
    if scope is not None:
        _current.set(scope.previous)
    return scope


@contextmanager
def restored(scope: Scope | None) -> Iterator[None]:
    """Makes `scope` current for a `with` block; `None` means that no boundaries are current."""
    token = _current.set(scope)
    try:
        yield
    finally:
        _current.reset(token)
