"""Sizes of the demo. Everything that decides how long it takes is here."""

from __future__ import annotations

from dataclasses import dataclass

from replacements.packing.tolerances import LOG_PROB

LIMIT = LOG_PROB
"""Largest |Δ log-prob| between packed and alone, in float32, that still counts as isolated."""


@dataclass(frozen=True)
class Settings:
    """Sizes of one demo run.

    Attributes:
        vocab: entries of the byte-level BPE vocabulary.
        context: tokens of a packed row.
        longest: tokens of the longest document.
        hidden: width of the model.
        feed_forward: width inside its MLPs.
        documents: at most this many training documents; ``None`` takes all.
        held_out: documents kept out of training, for the loss that is compared.
        rows_a_step: packed rows in an optimizer step. Best-fit packing puts documents of like length into a row, so
            that one row alone, padded, would waste less than batches do in practice.
        measured_rows: packed rows that the isolation is measured on.
        learning_rate: peak of AdamW's cosine schedule.
        epochs: passes over the documents.
        steps: optimizer steps of each run, instead of epochs.
        seed: of the weights, of the split and of the order of the documents.
    """

    vocab: int = 2048
    context: int = 1024
    longest: int = 1024
    hidden: int = 192
    feed_forward: int = 512
    documents: int | None = None
    held_out: int = 16
    rows_a_step: int = 2
    measured_rows: int = 8
    learning_rate: float = 3e-3
    epochs: float = 1.0
    steps: int | None = None
    seed: int = 0


SIZES = {
    "small": Settings(),
    "tiny": Settings(
        vocab=512,
        context=512,
        longest=128,
        hidden=64,
        feed_forward=128,
        documents=60,
        held_out=4,
        measured_rows=2,
        steps=4,
    ),
}
