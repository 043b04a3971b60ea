"""Completes the batches of TRL's collator: where each document starts, on every TRL release.

Releases differ in what they emit for a packed row: nothing at all, positions alone, or positions with cumulative
lengths in which every pad token counts as a document. The lengths are in the examples, so they are taken from there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from replacements.kernels.segments import Segments
from replacements.packing.boundaries import BoundaryError, segments_to_positions, segments_to_seq_idx

_ATTRIBUTE = "_patcher_boundaries"
#: What newer releases emit for flash attention. Its shape depends on the documents, so a batch that holds it cannot be
#: dispatched to processes or sliced; the backbone's hook derives it again from `seq_idx`.
_CUMULATIVE = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")


class Requested:
    """The mark of a collator whose batches are completed.

    It travels with the collator into dataloader workers. A worker that was spawned has not imported `patcher`, so the
    mark brings it along: without it the worker's collator would be TRL's own again.

    Attributes:
        packs: Whether the trainer is prepared for rows of several documents; if not, such a row is an error.
    """

    def __init__(self, packs: bool = True):
        self.packs = packs

    def __reduce__(self) -> tuple[Any, tuple[bool]]:
        return _request_in_worker, (self.packs,)


def _request_in_worker(packs: bool) -> Requested:
    import patcher

    patcher.install()
    return Requested(packs)


def request_boundaries(collator: Any) -> None:
    """Asks for the batches of `collator` to be completed."""
    setattr(collator, _ATTRIBUTE, Requested())


def refuse_packed_rows(collator: Any) -> None:
    """Asks for rows of several documents to be an error: nobody saw the columns of the data, or asked to pack it."""
    setattr(collator, _ATTRIBUTE, Requested(packs=False))


def requests_boundaries(collator: Any) -> bool:
    """Whether the batches of `collator` are completed."""
    return isinstance(getattr(collator, _ATTRIBUTE, None), Requested)


def check_lengths(collator: Any, examples: list[dict[str, Any]]) -> None:
    """Called before TRL flattens the examples.

    Args:
        collator: TRL's collator; left alone unless its trainer asked for boundaries.
        examples: What the collator was given.

    Raises:
        BoundaryError: The lengths of an example do not add up to its tokens.
    """
    if requests_boundaries(collator) and getattr(collator, _ATTRIBUTE).packs:
        for example in examples:
            _document_lengths(example)


def complete(collator: Any, examples: list[dict[str, Any]], batch: dict[str, Any]) -> dict[str, Any]:
    """Puts the boundaries of a finished batch into it.

    Adds `seq_idx` (int32 `[rows, T]`) and `position_ids` (int64 `[rows, T]`), masks the first label of each document
    and the padded tail with -100, and drops a mask of ones and cumulative lengths. The tail is one segment of its
    own. A batch whose rows are single documents is returned as it is.

    Args:
        collator: TRL's collator; left alone unless its trainer asked for boundaries.
        examples: What the collator was given; `seq_lengths` holds the lengths of the documents of a packed example.
        batch: What it returns.

    Raises:
        BoundaryError: The lengths do not add up to the tokens.
    """
    if not requests_boundaries(collator):
        return batch
    if not getattr(collator, _ATTRIBUTE).packs:
        _refuse_several_documents(examples)
        return batch
    rows, length = batch["input_ids"].shape
    documents = [_document_lengths(example) for example in examples]
    if collator.padding_free:
        documents = [np.concatenate(documents)]
    elif all(len(lengths) == 1 for lengths in documents):
        return batch
    segments = Segments(np.concatenate([_with_tail(lengths, length) for lengths in documents]), rows=rows)
    batch["seq_idx"] = segments_to_seq_idx(segments)
    batch["position_ids"] = segments_to_positions(segments)
    batch.pop("attention_mask", None)
    _mask_labels(batch["labels"], batch["position_ids"], [int(lengths.sum()) for lengths in documents])
    for name in _CUMULATIVE:
        batch.pop(name, None)
    return batch


def _refuse_several_documents(examples: list[dict[str, Any]]) -> None:
    for documents in (np.asarray(example.get("seq_lengths")).size for example in examples):  # a list, array or tensor
        if documents > 1:
            raise BoundaryError(
                f"A row holds {documents} documents (`seq_lengths`), and the trainer was built for rows of one. "
                "Build it with such rows (a stream with its features, so that they are known to be packed), or pass "
                "the documents as rows of their own."
            )


def _document_lengths(example: dict[str, Any]) -> np.ndarray:
    tokens = len(example["input_ids"])
    given = example.get("seq_lengths", [tokens])
    lengths = np.asarray([] if given is None else given, dtype=np.int64)
    if lengths.sum() != tokens or np.any(lengths < 0):
        raise BoundaryError(
            f"`seq_lengths` of a packed example add up to {lengths.sum()} but it has {tokens} tokens, or one is "
            "negative. Pack the dataset again, or drop the `seq_lengths` column if its rows are single documents."
        )
    return lengths[lengths > 0]


def _with_tail(lengths: np.ndarray, length: int) -> np.ndarray:
    return np.append(lengths, length - lengths.sum())


def _mask_labels(labels: torch.Tensor, position_ids: torch.Tensor, real_tokens: list[int]) -> None:
    labels[position_ids == 0] = -100
    for row, tokens in enumerate(real_tokens):
        labels[row, tokens:] = -100
