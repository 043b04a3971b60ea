"""Stops a training step that would join documents in silence, on a model to which no runtime is attached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from replacements.packing.arguments import by_name, shape_of
from replacements.packing.boundaries import BoundaryError, find_documents

if TYPE_CHECKING:
    from torch import nn

_ATTRIBUTE = "_patcher_tripwire"


class _Tripwire:
    """A forward pre-hook that refuses rows of several documents; it belongs to one process and is not copied along."""

    def __init__(self, why: str):
        self.why = why

    @torch.compiler.disable
    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() and kwargs.get("labels") is None:
            return
        _, named = by_name(module, args, kwargs)
        if find_documents(named, *shape_of(args, named))[0] is not None:
            raise BoundaryError(self.why)


def refuse_documents(model: nn.Module, why: str) -> None:
    """From now on a training or evaluation step of `model` on a row of several documents raises, saying `why`."""
    allow_documents(model)
    handle = model.register_forward_pre_hook(_Tripwire(why), with_kwargs=True)
    object.__setattr__(model, _ATTRIBUTE, handle)


def allow_documents(model: nn.Module) -> None:
    """Takes `refuse_documents` back."""
    handle = vars(model).pop(_ATTRIBUTE, None)
    if handle is not None:
        handle.remove()
