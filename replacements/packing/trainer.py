"""What the rewritten `SFTTrainer` calls when it is complete."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from replacements.packing import dispatch, settings
from replacements.packing.arguments import shape_of
from replacements.packing.boundaries import EXPLICIT
from replacements.packing.collator import refuse_packed_rows, request_boundaries
from replacements.packing.reporting import report
from replacements.packing.runtime import attach
from replacements.packing.situation import completes
from replacements.packing.structure import Anatomy
from replacements.packing.tripwire import refuse_documents

_LOST = (
    "A row of a trainer that packs reached the model without `position_ids` and `seq_idx`, which its collator always "
    "emits: something between the two lost them (a data loader, `_prepare_dataset` or `compute_loss` of your own). "
    "Pass all of the batch on to the model; if the row is one document, pass its `position_ids`."
)
_CANNOT = (
    "The data collator says that a row holds several documents, and this model cannot keep them apart here; "
    "`patcher check` says why. Pass each document as a row of its own."
)


class CollatorReplacedError(RuntimeError):
    """The collator that was to say where documents start is no longer the trainer's."""


class BoundariesLostError(RuntimeError):
    """A row that may hold several documents no longer says where they start."""


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
    elif verdict.action == "leave" and not ours:
        _stand_by(trainer.model)
    elif verdict.action == "leave" and not (trainer.args.packing or getattr(trainer.args, "eval_packing", None)):
        refuse_packed_rows(trainer.data_collator)
    report(trainer, verdict)


def _stand_by(model: nn.Module) -> None:
    """A collator of the user's own may say where documents start, now or later: a hybrid must not join them."""
    anatomy = Anatomy.of(model)
    if not (anatomy.mixers or anatomy.unknown):
        return
    if anatomy.unknown or dispatch.unreachable(anatomy.mixers) or not settings.hybrid_packing():
        refuse_documents(model, _CANNOT)
    else:
        attach(model)


class _Watch:
    """Of forwards whose rows are said to be single documents: whether it was our collator that said so.

    A copied or saved model leaves it behind: it belongs to the trainer.
    """

    def __init__(self, trainer: Any):
        self.trainer, self.collator = weakref.ref(trainer), weakref.ref(trainer.data_collator)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(None), ()

    def __call__(self, kwargs: Mapping[str, Any]) -> None:
        """Raises if the collator was replaced by one that says nothing of documents, or what it said got lost."""
        built = self.trainer()
        says = any(kwargs.get(name) is not None for name in (*EXPLICIT, "position_ids"))
        if says or built is None or not (torch.is_grad_enabled() or kwargs.get("labels") is not None):
            return
        collator = self.collator()
        if built.data_collator is collator:
            # Without labels it may be a forward of the user's own, on a document alone.
            labelled = kwargs.get("labels") is not None and kwargs.get("attention_mask") is None
            if labelled and collator.padding_free and shape_of((), kwargs)[0] == 1:
                raise BoundariesLostError(_LOST)
        else:
            raise CollatorReplacedError(
                f"`trainer.data_collator` was replaced by {type(built.data_collator).__name__} after the trainer was "
                "built for packing, and its batches do not say where documents start. Pass the collator to the "
                "trainer with `packing=False, padding_free=False`, or let it emit `seq_idx` or `position_ids` that "
                "restart at each document."
            )
