"""Packed against alone: by how much the neighbours in a packed row change a document's log-probabilities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel
    from trl import SFTTrainer

    Batch = dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a model did with packed rows.

    Attributes:
        delta: for each row, for each of its documents, the largest |Δ log-prob| packed against alone over all
            positions and the whole vocabulary. ``None`` if the forward raised.
        error: what it raised, in one line.
    """

    delta: list[list[float]] | None
    error: str | None = None

    @property
    def largest(self) -> float | None:
        """The largest difference over all rows and documents; not a number if any logit is not."""
        if self.delta is None:
            return None
        flat = [value for row in self.delta for value in row]
        return math.nan if any(map(math.isnan, flat)) else max(flat)


def longest_mix(trainer: SFTTrainer, count: int) -> list[dict[str, Any]]:
    """The ``count`` rows of a packed training set that hold the most documents."""
    lengths = trainer.train_dataset["seq_lengths"]
    order = sorted(range(len(lengths)), key=lambda row: -len(lengths[row]))
    return [trainer.train_dataset[row] for row in order[:count]]


def batches(trainer: SFTTrainer, rows: list[dict[str, Any]]) -> list[Batch]:
    """Each row as the trainer's collator delivers it, on the model's device."""
    import torch

    device = trainer.model.device
    return [
        {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in trainer.data_collator([row]).items()
        }
        for row in rows
    ]


def only_positions(batch: Batch) -> Batch:
    """The batch with no other trace of the documents than position_ids that start again (TRL 0.23.1 to 1.15)."""
    return {name: batch[name] for name in ("input_ids", "position_ids")}


def alone(model: PreTrainedModel, rows: list[dict[str, Any]]) -> list[list[torch.Tensor]]:
    """Log-probabilities [L, vocab] of each document of each row, run by itself."""
    import torch

    truth = []
    for row in rows:
        ids = torch.tensor(row["input_ids"], device=model.device)
        truth.append([_log_probs(model, {"input_ids": document[None]}) for document in ids.split(row["seq_lengths"])])
    return truth


def forward(model: PreTrainedModel, packed: list[Batch]) -> list[torch.Tensor]:
    """Log-probabilities [T, vocab] of each packed row."""
    return [_log_probs(model, {name: batch[name] for name in batch if name != "labels"}) for batch in packed]


def compare(packed: list[torch.Tensor], truth: list[list[torch.Tensor]]) -> Outcome:
    """Every document of packed rows with the same document alone."""
    delta = []
    for row, documents in zip(packed, truth, strict=True):
        parts = row.split([len(document) for document in documents])
        delta.append([(part - document).abs().max().item() for part, document in zip(parts, documents, strict=True)])
    return Outcome(delta)


def measure(model: PreTrainedModel, packed: list[Batch], truth: list[list[torch.Tensor]]) -> Outcome:
    """`forward` and `compare`; a model that refuses the batch is an outcome too."""
    try:
        return compare(forward(model, packed), truth)
    except (ValueError, NotImplementedError) as error:  # how transformers refuses boundaries it cannot honour
        return Outcome(None, f"{type(error).__name__}: {' '.join(str(error).split())}")


def _log_probs(model: PreTrainedModel, inputs: Batch) -> torch.Tensor:
    import torch

    model.eval()
    with torch.no_grad():
        # With a cache, transformers does not look for documents in position_ids and attention leaks as well.
        return model(**inputs, use_cache=False).logits[0].float().log_softmax(-1)
