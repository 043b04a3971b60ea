"""What the rewritten `SFTTrainer` calls when it is complete."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch

from replacements.packing.boundaries import EXPLICIT
from replacements.packing.collator import refuse_packed_rows, request_boundaries
from replacements.packing.reporting import report
from replacements.packing.runtime import attach
from replacements.packing.situation import columns_of, completes


class CollatorReplacedError(RuntimeError):
    """The collator that was to say where documents start is no longer the trainer's."""


def prepare(trainer: Any) -> None:
    """Attaches the runtime to a finished trainer whose verdict is to pack; leaves every other trainer alone."""
    verdict = vars(trainer).get("_patcher_verdict")
    if verdict is None:
        return
    ours = completes(trainer.data_collator)
    if verdict.action == "pack":
        runtime = attach(trainer.model)
        if ours:
            request_boundaries(trainer.data_collator)
            runtime.watch = _Watch(trainer)
    elif verdict.action == "leave" and ours and columns_of(trainer.train_dataset) is None:
        refuse_packed_rows(trainer.data_collator)
    report(trainer, verdict)


class _Watch:
    """Of forwards whose rows are said to be single documents: whether it was our collator that said so.

    A copied or saved model leaves it behind: it belongs to the trainer.
    """

    def __init__(self, trainer: Any):
        self.trainer, self.collator = weakref.ref(trainer), weakref.ref(trainer.data_collator)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def __call__(self, kwargs: Mapping[str, Any]) -> None:
        """Raises if the collator of the trainer was replaced by one that says nothing of documents."""
        built = self.trainer()
        says = any(kwargs.get(name) is not None for name in (*EXPLICIT, "position_ids"))
        if says or built is None or built.data_collator is self.collator():
            return
        if torch.is_grad_enabled() or kwargs.get("labels") is not None:
            raise CollatorReplacedError(
                f"`trainer.data_collator` was replaced by {type(built.data_collator).__name__} after the trainer was "
                "built for packing, and its batches do not say where documents start. Pass the collator to the "
                "trainer with `packing=False, padding_free=False`, or let it emit `seq_idx` or `position_ids` that "
                "restart at each document."
            )
