"""What the rewritten trainer calls under Unsloth: the guard as ever, and one of two to give mixers their boundaries.

Unsloth keeps the boundaries of a forward on the mixers, where its wrapped mixers read them. That goes wrong where the
trainer calls the backbone without the model's own forward, and where two forwards precede their backward. While the
runtime here has boundaries for a mixer, what Unsloth keeps there is cleared before the mixer runs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from replacements.packing import guard, trainer
from replacements.packing.current import current
from replacements.packing.runtime import runtime_of
from replacements.packing.structure import Anatomy
from replacements.packing.verdict import LEAVE

_BOUNDARIES = "_unsloth_varlen"
_WRAPPED_MIXER = "_unsloth_varlen_wrapped"
_WRAPPED_MODEL = "_unsloth_varlen_forward_wrapped"
#: Unsloth raises once if its own kernels did not run in the first packed forward, which is so while it stands by.
_CHECKED = "_unsloth_varlen_handshake_done"
_ABSENT = object()


def choose(sft_trainer: Any, **situation: Any) -> Any:
    """The guard's choice of `args`; a model of attention alone is left to Unsloth, which has its own for packed rows.

    Raises:
        PackingRefusedError: as the guard.
    """
    model = situation["model"]
    if isinstance(model, nn.Module) and _attention_alone(model):
        sft_trainer._patcher_verdict = LEAVE
        return situation["args"]
    standing = stand_by(model)
    try:
        return guard.choose(sft_trainer, **situation)
    finally:
        for handle in standing:
            handle.remove()


def prepare(sft_trainer: Any) -> None:
    """Attaches the runtime as ever; Unsloth's boundaries stand by for as long as it is attached."""
    trainer.prepare(sft_trainer)
    runtime = runtime_of(sft_trainer.model)
    if runtime is not None:
        runtime.hold(stand_by(sft_trainer.model))


def stand_by(model: Any) -> list[Any]:
    """Has Unsloth's boundaries cleared wherever this package has its own.

    Returns:
        Handles; their `remove()` gives Unsloth its place again.
    """
    if not isinstance(model, nn.Module):
        return []
    handles: list[Any] = []
    for module in model.modules():
        if vars(module).get(_WRAPPED_MODEL):
            handles.append(_Attribute(module, _CHECKED, True))
        if vars(module).get(_WRAPPED_MIXER):
            handles.append(module.register_forward_pre_hook(_clear))
    return handles


@torch.compiler.disable
def _clear(module: nn.Module, args: tuple[Any, ...]) -> None:
    scope = current()
    if scope is not None and scope.segments is not None:
        setattr(module, _BOUNDARIES, None)


def _attention_alone(model: nn.Module) -> bool:
    anatomy = Anatomy.of(model)
    return not anatomy.mixers and not anatomy.unknown


class _Attribute:
    """An attribute set for a while."""

    def __init__(self, owner: nn.Module, name: str, value: Any):
        self.owner, self.name, self.before = owner, name, vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)

    def remove(self) -> None:
        """Puts back what was there."""
        if self.before is _ABSENT:
            vars(self.owner).pop(self.name, None)
        else:
            setattr(self.owner, self.name, self.before)
