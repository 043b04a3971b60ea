"""Chunks of a packed row: which token sits in which slot, and which chunk hands its state to which.

A row is cut into pieces, each a run of tokens of one document; pieces are placed in chunks of equal size. A recurrent
state passes from a piece to the next piece of the same document: that is a *link*. Links are numbered step by step
(first the second piece of every document that has one, then the third, ...), and within a step the documents with the
most pieces come first. Hence step ``j + 1`` continues a prefix of the links of step ``j``, and a scan over the links
is one batched operation on slices per step, as deep as the longest document and not as the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch

Layout = Literal["aligned", "shared", "row"]


def to_device(array: np.ndarray, device: torch.device) -> torch.Tensor:
    """Copy a host array to ``device`` without waiting for the device."""
    tensor = torch.from_numpy(np.array(array, order="C"))  # a copy: torch must not alias a read-only array
    if device.type == "cuda" and tensor.numel():
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass(frozen=True, eq=False)
class HostPlan:
    """The chunks of a row as numpy arrays; `ChunkPlan` documents the fields."""

    size: int
    layout: Layout
    count: int
    free: int
    index: np.ndarray
    inverse: np.ndarray
    valid: np.ndarray
    document: np.ndarray
    enters: np.ndarray
    leaves: np.ndarray
    source: np.ndarray
    steps: tuple[tuple[int, int], ...]

    @property
    def previous(self) -> np.ndarray:
        """Link that each link after step 0 continues, int64."""
        runs = [before + np.arange(count) for (before, _), (_, count) in pairwise(self.steps)]
        return np.concatenate(runs) if runs else np.zeros(0, np.int64)

    @classmethod
    def build(cls, offsets: np.ndarray, size: int, layout: Layout) -> HostPlan:
        """Place the documents given by ``offsets`` (int64 ``[n + 1]``) in chunks of ``size`` slots."""
        if size < 1:
            raise ValueError(f"the chunk size must be positive, got {size}")
        pieces = _PLACE[layout](offsets, size)
        ranks = _ranks(pieces.document, offsets.size - 1)
        order = np.flatnonzero(pieces.step > 0)
        order = order[np.lexsort((ranks[pieces.document[order]], pieces.step[order]))]
        renumber, free = _renumber(pieces, order, ranks)
        chunk = renumber[pieces.chunk]
        per_step = np.bincount(pieces.step)[1:]
        begin = np.cumsum(per_step) - per_step
        return cls(
            size=size,
            layout=layout,
            count=renumber.size,
            free=free,
            source=chunk[order - 1],
            steps=tuple(zip(begin.tolist(), per_step.tolist(), strict=True)),
            **_slots(pieces, chunk, renumber.size, size),
        )


@dataclass(frozen=True)
class _Pieces:
    """Runs of tokens of one document, in row order. All int64 ``[p]``."""

    start: np.ndarray  # first token in the row
    length: np.ndarray
    document: np.ndarray
    step: np.ndarray  # number of the piece in its document
    chunk: np.ndarray
    slot: np.ndarray  # first slot in the chunk

    @property
    def last(self) -> np.ndarray:
        """Whether the piece ends its document."""
        return np.append(self.document[1:] != self.document[:-1], True)


def _cut(offsets: np.ndarray, size: int) -> _Pieces:
    """One piece per chunk, no chunk shared."""
    lengths = np.diff(offsets)
    counts = -(-lengths // size)
    document = np.repeat(np.arange(lengths.size), counts)
    step = np.arange(document.size) - np.repeat(np.cumsum(counts) - counts, counts)
    length = np.minimum(size, lengths[document] - step * size)
    chunk = np.arange(document.size)
    return _Pieces(offsets[document] + step * size, length, document, step, chunk, np.zeros_like(chunk))


def _share(offsets: np.ndarray, size: int) -> _Pieces:
    """As `_cut`, with short documents packed: rounded up to powers of two, the largest first, none straddles."""
    if size & (size - 1):
        raise ValueError(f"shared chunks need a power of two as size, got {size}")
    pieces = _cut(offsets, size)
    short = (pieces.step == 0) & pieces.last & (pieces.length <= size // 2)
    room = 2 ** np.ceil(np.log2(pieces.length[short])).astype(np.int64)
    order = np.argsort(-room, kind="stable")
    place = np.empty_like(room)
    place[order] = np.cumsum(room[order]) - room[order]
    chunk, slot = np.empty_like(pieces.chunk), pieces.slot.copy()
    chunk[~short] = np.arange(np.count_nonzero(~short))
    chunk[short] = np.count_nonzero(~short) + place // size
    slot[short] = place % size
    return _Pieces(pieces.start, pieces.length, pieces.document, pieces.step, chunk, slot)


def _grid(offsets: np.ndarray, size: int) -> _Pieces:
    """Cuts at every multiple of the size, and at the documents' starts."""
    start = np.union1d(offsets[:-1], np.arange(0, offsets[-1], size))
    length = np.diff(np.append(start, offsets[-1]))
    document = np.searchsorted(offsets, start, side="right") - 1
    first = np.searchsorted(start, offsets[:-1])
    return _Pieces(start, length, document, np.arange(start.size) - first[document], start // size, start % size)


_PLACE: dict[Layout, Callable[[np.ndarray, int], _Pieces]] = {"aligned": _cut, "shared": _share, "row": _grid}


def _ranks(document: np.ndarray, count: int) -> np.ndarray:
    """Place of every document when those with the most pieces come first."""
    ranks = np.empty(count, np.int64)
    ranks[np.argsort(-np.bincount(document, minlength=count), kind="stable")] = np.arange(count)
    return ranks


def _renumber(pieces: _Pieces, order: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, int]:
    """New chunk numbers: first the chunks no state enters (by rank of the document leaving), then one per link."""
    count = int(pieces.chunk.max()) + 1
    key = np.full(count, ranks.size, np.int64)
    leaving = ~pieces.last
    key[pieces.chunk[leaving]] = ranks[pieces.document[leaving]]
    entered = np.zeros(count, bool)
    entered[pieces.chunk[order]] = True
    free = np.flatnonzero(~entered)
    renumber = np.empty(count, np.int64)
    renumber[free[np.argsort(key[free], kind="stable")]] = np.arange(free.size)
    renumber[pieces.chunk[order]] = free.size + np.arange(order.size)
    return renumber, free.size


def _slots(pieces: _Pieces, chunk: np.ndarray, count: int, size: int) -> dict[str, np.ndarray]:
    """The slot of every token and the token of every slot; padding repeats the token before it."""
    of_token = np.repeat(np.arange(pieces.start.size), pieces.length)
    tokens = np.arange(of_token.size)
    inverse = (chunk * size + pieces.slot - pieces.start)[of_token] + tokens
    valid = np.zeros(count * size, bool)
    valid[inverse] = True
    index = np.zeros(count * size, np.int64)
    index[inverse] = tokens
    index = index[np.maximum.accumulate(np.where(valid, np.arange(count * size), 0))]
    piece = of_token[index]
    return {
        "index": index,
        "inverse": inverse,
        "valid": valid,
        "document": pieces.document[piece],
        "enters": valid & (pieces.step > 0)[piece],
        "leaves": valid & ~pieces.last[piece],
    }


class ChunkPlan:
    """The chunks of a row on one device. Chunk tensors have the layout ``[count, ..., size, ...]``.

    Chunks are numbered so that the first `free` receive no state and chunk ``free + e`` receives link ``e``. In the
    ``"aligned"`` layout this makes step ``j`` of the documents, longest first, a contiguous run of chunks.

    Attributes:
        size: Slots per chunk.
        layout: How documents were placed, see `Segments.chunks`.
        count: Number of chunks C.
        free: Number of chunks that no state enters; the others are ``[free:]``, one per link.
        links: Number of links E = count - free.
        steps: Per scan step, ``(first link, number of links)``, as host integers; the numbers never increase. Link
            ``i`` of step ``j`` continues link ``i`` of step ``j - 1``; links of step 0 leave a document's first piece.
        passing: Number of links F after step 0: they leave a chunk whose state came in by another link.
        padded: Whether any slot is padding.
        mixed: Whether any chunk holds several documents.
    """

    def __init__(self, host: HostPlan, device: torch.device) -> None:
        self.size, self.layout, self.count, self.free = host.size, host.layout, host.count, host.free
        self.links, self.steps, self.device = host.count - host.free, host.steps, device
        self.passing = self.links - (host.steps[0][1] if host.steps else 0)
        self.padded = not bool(host.valid.all())
        self.mixed = bool((host.document.reshape(-1, host.size) != host.document.reshape(-1, host.size)[:, :1]).any())
        self._in_order = bool((host.source == np.arange(self.links)).all())
        self._steady = bool((host.previous == np.arange(self.passing)).all())
        self._host = host
        self._rows: dict[Any, torch.Tensor] = {}

    def _send(self, name: str) -> torch.Tensor:
        array = getattr(self._host, name)
        return to_device(array if name in ("index", "inverse", "source") else array.reshape(-1, self.size), self.device)

    @cached_property
    def index(self) -> torch.Tensor:
        """Token in each slot, int64 ``[C * size]``; padding repeats the token before it in the same chunk."""
        return self._send("index")

    @cached_property
    def inverse(self) -> torch.Tensor:
        """Slot of each token, int64 ``[N]``."""
        return self._send("inverse")

    @cached_property
    def source(self) -> torch.Tensor:
        """Chunk each link leaves, int64 ``[E]``; it enters chunk ``free + e``."""
        return self._send("source")

    @cached_property
    def previous(self) -> torch.Tensor:
        """Link that each link after step 0 continues, int64 ``[F]``; it enters the chunk this one leaves."""
        return to_device(self._host.previous, self.device)

    @cached_property
    def valid(self) -> torch.Tensor:
        """Slots that hold a token, bool ``[C, size]``."""
        return self._send("valid")

    @cached_property
    def document(self) -> torch.Tensor:
        """Document of each slot, int64 ``[C, size]``; padding belongs to the token before it."""
        return self._send("document")

    @cached_property
    def enters(self) -> torch.Tensor:
        """Slots of the piece that receives the chunk's incoming state, bool ``[C, size]``."""
        return self._send("enters")

    @cached_property
    def leaves(self) -> torch.Tensor:
        """Slots of the piece whose state leaves the chunk, bool ``[C, size]``."""
        return self._send("leaves")

    @cached_property
    def pairs(self) -> torch.Tensor:
        """Slot pairs (i, j) with j at or before i in the same document, bool ``[C, size, size]``."""
        same = self.document.unsqueeze(2) == self.document.unsqueeze(1)
        return (same & (self.valid.unsqueeze(2) & self.valid.unsqueeze(1))).tril_()

    def bias(self, dtype: torch.dtype) -> torch.Tensor:
        """`pairs` to be added before an exponential, 0 and -inf: ``[C, 1, size, size]``."""
        zeros = torch.zeros((), dtype=dtype, device=self.device)
        return self._cached(("bias", dtype), lambda: zeros.where(self.pairs, -torch.inf).unsqueeze(1))

    def gather(self, x: torch.Tensor, heads: int | None = None) -> torch.Tensor:
        """Bring ``[N, h, ...]`` to chunks ``[C, heads, size, ...]``; each of the h heads serves ``heads / h``."""
        held = x.shape[1]
        heads = held if heads is None else heads
        rows = self._cached(("gather", held, heads), lambda: self._gather_rows(held, heads))
        flat = x.reshape(x.shape[0] * held, *x.shape[2:])
        return flat.index_select(0, rows).view(self.count, heads, self.size, *x.shape[2:])

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Bring chunks ``[C, h, size, ...]`` back to ``[N, h, ...]``, dropping padding."""
        heads = x.shape[1]
        rows = self._cached(("scatter", heads), lambda: self._scatter_rows(heads))
        flat = x.reshape(self.count * heads * self.size, *x.shape[3:])
        return flat.index_select(0, rows).view(-1, heads, *x.shape[3:])

    def sources(self, x: torch.Tensor) -> torch.Tensor:
        """Select the chunk every link leaves from ``[C, ...]``: ``[E, ...]``, a view where possible."""
        return x[: self.links] if self._in_order else x.index_select(0, self.source)

    def add_to_sources(self, x: torch.Tensor, links: torch.Tensor) -> None:
        """Add ``[E, ...]`` to the chunks the links leave, in place; no chunk is left by two."""
        if self._in_order:
            x[: self.links].add_(links)
        else:
            x.index_add_(0, self.source, links)

    def before(self, x: torch.Tensor) -> torch.Tensor:
        """For the links after step 0, select the link each continues from ``[E, ...]``; a view where possible."""
        return x[: self.passing] if self._steady else x.index_select(0, self.previous)

    def _cached(self, key: Any, build: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self._rows:
            self._rows[key] = build()
        return self._rows[key]

    def _gather_rows(self, held: int, heads: int) -> torch.Tensor:
        head = torch.arange(heads, device=self.device) // (heads // held)
        return (self.index.view(-1, 1, self.size) * held + head.view(1, -1, 1)).flatten()

    def _scatter_rows(self, heads: int) -> torch.Tensor:
        head = torch.arange(heads, device=self.device)
        chunk, slot = self.inverse // self.size, self.inverse % self.size
        return ((chunk * heads).unsqueeze(1) + head).mul_(self.size).add_(slot.unsqueeze(1)).flatten()
