"""The functions of `patcher` that work on a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from replacements.packing.checking import check, judged
from replacements.packing.guard import PackingRefusedError
from replacements.packing.runtime import attach
from replacements.packing.verification import verify

if TYPE_CHECKING:
    from torch import nn

    Model = TypeVar("Model", bound=nn.Module)

__all__ = ["check", "pack", "verify"]


def pack(model: Model) -> Model:
    """Makes a model keep the documents of a packed row apart, for training without TRL.

    For `transformers.Trainer` with `DataCollatorWithFlattening` and for a loop of your own. A batch says where its
    documents start by `seq_idx` (int32 `[B, T]`), `cu_seq_lens_q` (int32 `[documents + 1]`) or by `position_ids`
    (int64 `[B, T]`) that restart. Batches of whole rows run as before.

    Args:
        model: A causal language model of transformers, or a PEFT model around one. It is changed in place;
            `patcher.uninstall()` takes it back.

    Returns:
        The same model.

    Raises:
        PackingRefusedError: The model cannot keep documents apart; the message says why and what to do.
    """
    verdict = judged(model)
    if verdict.action != "pack":
        raise PackingRefusedError(f"This model cannot be packed [{verdict.reason.code}]: {verdict.sentence}")
    attach(model)
    return model
