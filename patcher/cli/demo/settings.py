"""Sizes of the demo. Everything that decides how long it takes is here."""

from __future__ import annotations

from dataclasses import dataclass

LIMIT = 1e-4
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
        rows: packed rows that the isolation is measured on.
        learning_rate: peak of AdamW's cosine schedule.
        steps: optimizer steps of each run; ``None`` means one pass over the documents.
        seed: of the weights, of the split and of the order of the documents.
    """

    vocab: int = 2048
    context: int = 2048
    longest: int = 2048
    hidden: int = 192
    feed_forward: int = 512
    documents: int | None = None
    held_out: int = 16
    rows: int = 6
    learning_rate: float = 3e-3
    steps: int | None = None
    seed: int = 0


SIZES = {
    "small": Settings(),
    "tiny": Settings(
        vocab=512, context=512, longest=128, hidden=64, feed_forward=128, documents=60, held_out=4, rows=2, steps=4
    ),
}
