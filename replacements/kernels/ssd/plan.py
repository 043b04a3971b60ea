"""Chunks for the state-space dual form, in row order.

The chunks of `Segments.chunks` are ordered for scans that take all documents in step, which holds every state of the
row at once. Here the chunks stay in row order, so a few of them at a time are loaded as one slice of the row, and one
state is handed from each block of chunks to the next.

A chunk may hold several documents, told apart by a mask. Where a document would be cut although it fits in one chunk,
the chunk can instead end early: that costs empty slots and saves the two products through the state, which are most of
the work when documents are short.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ..chunking import to_device
from ..segments import Segments

_SIZES = (16, 32, 64, 128)
# Cost of one element of a [size, size] product, and of a state, in multiply-adds of a matrix product: they are
# limited by memory, on a CPU and on an accelerator by about the same factor.
_PAIR_COST = 40
_STATE_COST = 40
# Elements of [size, size] products and states per block of chunks.
_BLOCK_CPU = 1 << 20
_BLOCK_ACCELERATOR = 1 << 26


@dataclass(frozen=True)
class Heads:
    """Sizes of the operation: heads H, head width P, groups G, state N."""

    count: int
    width: int
    groups: int
    state: int


@dataclass(frozen=True)
class Block:
    """A run of c chunks, on one device.

    Attributes:
        start: First token.
        stop: One past the last token.
        index: Token of each slot relative to `start`, int64 ``[c * size]``, or None where the slots are the tokens.
            Padding repeats the chunk's last token.
        inverse: Slot of each token, int64 ``[stop - start]``, or None.
        document: Document of each slot, int64 ``[c, size]``; -1 in padding.
        first: First slot of the slot's document in the chunk, int64 ``[c, size]``.
        enters: Slots of the document that continues from the chunk before, bool ``[c, size]``.
        leaves: Slots of the document that continues in the chunk after, bool ``[c, size]``.
        through: Whether one document fills the chunk and continues on both sides, bool ``[c]``.
        linked: Whether any state enters or leaves a chunk of the block.
    """

    start: int
    stop: int
    index: torch.Tensor | None
    inverse: torch.Tensor | None
    document: torch.Tensor
    first: torch.Tensor
    enters: torch.Tensor
    leaves: torch.Tensor
    through: torch.Tensor
    linked: bool


def plan_blocks(segments: Segments, heads: Heads, device: torch.device) -> list[Block]:
    """Choose the cheapest chunks for these documents and cut them into blocks that suit the device."""

    def build() -> list[Block]:
        size, edges = segments.cached(("ssd", heads), lambda: choose_chunks(segments.offsets, heads))
        budget = _BLOCK_CPU if device.type == "cpu" else _BLOCK_ACCELERATOR
        chunks = max(1, budget // (heads.count * (size * size + heads.state * heads.width)))
        return _blocks(segments.offsets, edges, size, chunks, device)

    return segments.cached(("ssd", heads, device), build)


def choose_chunks(offsets: np.ndarray, heads: Heads) -> tuple[int, np.ndarray]:
    """The chunk size, and the first token of each chunk followed by the total, int64."""
    lengths = np.diff(offsets)
    candidates = []
    for size in _SIZES:
        candidates.append((size, _even_edges(offsets, size)))
        if lengths[lengths <= size].sum() * 8 > offsets[-1]:
            candidates.append((size, _whole_edges(offsets, size)))
    return min(candidates, key=lambda candidate: _cost(offsets, *candidate, heads))


def _cost(offsets: np.ndarray, size: int, edges: np.ndarray, heads: Heads) -> float:
    links = np.count_nonzero(_linked(offsets, edges))
    pairs = size * size * (heads.count * (heads.width + _PAIR_COST) + heads.groups * heads.state)
    state = heads.count * heads.state * heads.width
    return (edges.size - 1) * pairs + links * state * (2 * size + _STATE_COST)


def _linked(offsets: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Whether a document continues into the chunk, bool ``[C]``."""
    return offsets[np.searchsorted(offsets, edges[:-1])] != edges[:-1]


def _even_edges(offsets: np.ndarray, size: int) -> np.ndarray:
    return np.append(np.arange(0, offsets[-1], size), offsets[-1])


def _whole_edges(offsets: np.ndarray, size: int) -> np.ndarray:
    """End a chunk early rather than cut a document that fits in one."""
    bounds, total, edges = offsets.tolist(), int(offsets[-1]), [0]
    while edges[-1] + size < total:
        end = edges[-1] + size
        after = bisect_right(bounds, end)
        start, stop = bounds[after - 1], bounds[after]
        edges.append(start if start > edges[-1] and stop - start <= size else end)
    return np.array([*edges, total])


def _blocks(offsets: np.ndarray, edges: np.ndarray, size: int, chunks: int, device: torch.device) -> list[Block]:
    linked = np.append(_linked(offsets, edges), False)
    blocks = []
    for low in range(0, edges.size - 1, chunks):
        high = min(low + chunks, edges.size - 1)
        blocks.append(_block(offsets, edges[low : high + 1], linked[low : high + 1], size, device))
    return blocks


def _block(offsets: np.ndarray, edges: np.ndarray, linked: np.ndarray, size: int, device: torch.device) -> Block:
    """``edges`` and ``linked`` are ``[c + 1]``: the chunks and the one after."""
    start, stop = int(edges[0]), int(edges[-1])
    slots = edges[:-1, None] + np.arange(size)
    valid = slots < edges[1:, None]
    tokens = np.minimum(slots, edges[1:, None] - 1)
    owner = np.searchsorted(offsets, tokens, side="right") - 1
    document = np.where(valid, owner, -1)
    full = bool(valid.all())

    send = partial(to_device, device=device)
    return Block(
        start=start,
        stop=stop,
        index=None if full else send((tokens - start).ravel()),
        inverse=None if full else send(np.flatnonzero(valid)),
        document=send(document),
        first=send(np.maximum(offsets[owner] - edges[:-1, None], 0)),
        enters=send(linked[:-1, None] & (document == document[:, :1])),
        leaves=send(linked[1:, None] & (document == owner[:, -1:])),
        through=send(linked[:-1] & linked[1:] & (owner[:, 0] == owner[:, -1])),
        linked=bool(linked.any()),
    )
