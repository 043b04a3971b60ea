"""Which documents the row of the running forward holds.

One value per thread: the scope of the innermost forward that carries boundaries. The model's hooks open and close
it, the kernel wrappers read it, and a recomputation under gradient checkpointing opens it again.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from replacements.kernels.segments import Segments

_MODULE_FILE = torch.nn.modules.module.__file__
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
        strayed: Whether a kernel was called outside of the mixers: by another model, or by a mixer past its hooks.
        frame: The call that the scope lives for, while it is open.
    """

    owner: Any
    door: Any
    segments: Segments | None
    rows: int
    length: int
    previous: Scope | None = None
    mixer: Any = None
    used: dict[Any, set[str]] = field(default_factory=dict)
    strayed: bool = False
    frame: FrameType | None = None

    @property
    def abandoned(self) -> bool:
        """Whether the call ended and nobody closed the scope.

        Torch runs no hook when an interrupt (`KeyboardInterrupt`, `SystemExit`) leaves a module. A frame that still
        executes refuses to be cleared; one that has ended has nothing left to lose.
        """
        if self.frame is None:
            return False
        try:
            self.frame.clear()
        except RuntimeError:
            return False
        return True

    def record(self, op: str) -> None:
        """Notes that the running mixer used the boundaries in `op`."""
        if self.mixer is not None:
            self.used.setdefault(self.mixer, set()).add(op)


def current() -> Scope | None:
    """The scope of the innermost running forward in this thread, or `None`."""
    scope = _current.get()
    if scope is not None and scope.abandoned:
        while scope is not None and scope.abandoned:
            scope = scope.previous
        _current.set(scope)
    return scope


def enter(scope: Scope) -> None:
    """Makes `scope` current until `leave` is called for its door, or the module call it is entered from ends."""
    scope.previous = current()
    scope.frame = _module_call()
    _current.set(scope)


def _module_call() -> FrameType | None:
    """The innermost running call of a torch module, from whose hook this is called."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _MODULE_FILE:
        frame = frame.f_back
    return frame


def leave(door: Any) -> Scope | None:
    """Closes the scope that `door` opened, with everything left open inside it, and returns it.

    A forward that was interrupted inside `door` may have left inner scopes behind; they go as well. A door that
    opened nothing (its own pre-hook failed) closes nothing.
    """
    scope = _current.get()
    while scope is not None and scope.door is not door:
        scope = scope.previous
    if scope is not None:
        scope.frame = None
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
