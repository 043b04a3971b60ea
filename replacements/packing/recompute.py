"""Keeps a layer's boundaries for its recomputation under gradient checkpointing.

A checkpointed layer runs again during backward: in another thread on CUDA, perhaps after another forward, and without
the hooks of the backbone. The checkpointing function that transformers sets on each layer is therefore wrapped so that
the function it is given carries the scope of the forward.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replacements.packing.current import current, restored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from replacements.packing.current import Scope

#: Where a module keeps its checkpointing function: transformers' layers, and torch's `CheckpointWrapper` (FSDP).
_ATTRIBUTES = ("_gradient_checkpointing_func", "checkpoint_fn")


class BoundFunction:
    """A layer's function with the scope of the forward that first ran it; no scope is a scope too."""

    def __init__(self, function: Callable[..., Any], scope: Scope | None):
        self.function = function
        self.scope = scope

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the layer, in the forward or again in backward, with its own boundaries."""
        with restored(self.scope):
            return self.function(*args, **kwargs)


class BoundCheckpoint:
    """A checkpointing function that hands its layer function over with the current scope bound to it."""

    def __init__(self, original: Callable[..., Any]):
        self.original = original

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Checkpoints `function` with the boundaries it runs under."""
        return self.original(BoundFunction(function, current()), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # while unpickling, before `__init__`'s attributes are there
            raise AttributeError(name)
        return getattr(self.original, name)


def bind_checkpoints(model: nn.Module) -> None:
    """Wraps the checkpointing function of each module that has one; asked again before every forward.

    Checkpointing may be switched on, or its function replaced, at any time after the model was attached. The walk is
    made here because `Module.modules()` takes four times as long, most of it to put names together.
    """
    pending, seen = [model], set()
    while pending:
        module = pending.pop()
        if module is None or module in seen:
            continue
        seen.add(module)
        held = module.__dict__
        for name in _ATTRIBUTES:
            function = held.get(name)
            if function is not None and not isinstance(function, BoundCheckpoint):
                setattr(module, name, BoundCheckpoint(function))
        pending.extend(held["_modules"].values())


def release_checkpoints(modules: Iterable[nn.Module]) -> None:
    """Puts the original checkpointing functions back."""
    for module in modules:
        for name in _ATTRIBUTES:
            function = vars(module).get(name)
            if isinstance(function, BoundCheckpoint):
                setattr(module, name, function.original)
