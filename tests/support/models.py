"""Tiny models of every family, documents, and what the tests compare of them."""

from __future__ import annotations

import torch

from replacements.packing import measuring
from replacements.packing.weights import redraw
from tools.tiny_models import FAMILIES, exists, gradients, relative_error, summed_loss, tiny_model

__all__ = [
    "FAMILIES",
    "families",
    "gradients",
    "log_probs",
    "log_probs_apart",
    "packed_row",
    "redraw",
    "relative_error",
    "summed_loss",
    "tiny_model",
    "token_documents",
]


def families() -> list[str]:
    """Names of the families that the installed transformers has."""
    return [name for name in FAMILIES if exists(name)]


def token_documents(lengths: list[int], vocab: int = 128, seed: int = 0) -> list[torch.Tensor]:
    """Random documents, int64 `[length]` each; id 0 is left for padding."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (length,), generator=generator) for length in lengths]


def packed_row(documents: list[torch.Tensor], *, seq_idx: bool = True) -> dict[str, torch.Tensor]:
    """The documents in one row, as TRL's collator emits it: `[1, T]` ids, positions, labels and `seq_idx`."""
    labels = [document.clone() for document in documents]
    for label in labels:
        label[0] = -100
    row = measuring.packed_row(documents, seq_idx=seq_idx)
    row["labels"] = torch.cat(labels)[None]
    return row


def log_probs(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of every token of the vocabulary, `[T, V]`, of a batch of one row."""
    inputs.pop("labels", None)
    logits = model(**inputs).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def log_probs_apart(model: torch.nn.Module, documents: list[torch.Tensor]) -> torch.Tensor:
    """The same for documents run alone, one after the other, then joined."""
    return torch.cat([log_probs(model, input_ids=document[None]) for document in documents])
