"""Packed against alone: by how much the neighbours in a packed row change a document's log-probabilities."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replacements.packing.texts import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """The largest difference over all rows and documents; infinite if any logit is no finite number."""
        if self.delta is None:
            return None
        return max(value for row in self.delta for value in row)


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

    from replacements.packing.measuring import log_probs

    truth = []
    with _measured(model):
        for row in rows:
            documents = torch.tensor(row["input_ids"], device=model.device).split(row["seq_lengths"])
            truth.append([log_probs(model, {"input_ids": document[None]}) for document in documents])
    return truth


def forward(model: PreTrainedModel, packed: list[Batch]) -> list[torch.Tensor]:
    """Log-probabilities [T, vocab] of each packed row."""
    from replacements.packing.measuring import log_probs

    with _measured(model):
        return [log_probs(model, {name: batch[name] for name in batch if name != "labels"}) for batch in packed]


def compare(packed: list[torch.Tensor], truth: list[list[torch.Tensor]]) -> Outcome:
    """Every document of packed rows with the same document alone."""
    from replacements.packing.measuring import largest_difference

    delta = []
    for row, documents in zip(packed, truth, strict=True):
        parts = row.split([len(document) for document in documents])
        delta.append([largest_difference(*pair) for pair in zip(parts, documents, strict=True)])
    return Outcome(delta)


def measure(model: PreTrainedModel, packed: list[Batch], truth: list[list[torch.Tensor]]) -> Outcome:
    """`forward` and `compare`; a model that refuses the batch is an outcome too."""
    try:
        return compare(forward(model, packed), truth)
    except (ValueError, NotImplementedError) as error:  # how transformers refuses boundaries it cannot honour
        return Outcome(None, one_line(error))


@contextmanager
def _measured(model: PreTrainedModel) -> Iterator[None]:
    import torch

    from replacements.packing.measuring import undisturbed

    with undisturbed(model), torch.no_grad():
        yield
