"""Where the documents of a packed row begin and end, and the index plans that follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from .chunking import ChunkPlan, HostPlan, Layout, to_device

_INT32_MAX = 2**31 - 1


class Segments:
    """The documents of one flattened row, in order.

    A ``[B, T]`` batch is flattened to one row of ``B * T`` tokens; documents never cross the end of a batch row.
    Everything derived from the lengths is computed once, on the host and vectorised, and cached per device, so all
    layers of a model share it and no operation has to read the device back.

    Instances are immutable and compare by identity.

    Attributes:
        lengths: Tokens per document, int64 ``[n]``, read-only, every entry positive.
        offsets: First token of each document and the total, int64 ``[n + 1]``, read-only.
        rows: Batch rows the flattened row stands for.
        total: Tokens in the row.
        count: Number of documents.
        longest: Tokens in the longest document.
    """

    __slots__ = ("__weakref__", "_cache", "count", "lengths", "longest", "offsets", "rows", "total")

    def __init__(self, lengths: Sequence[int] | np.ndarray, rows: int = 1) -> None:
        """Check and keep the lengths.

        Args:
            lengths: Tokens per document in row order, over all batch rows. Zeros are dropped.
            rows: Number of batch rows; each must hold ``sum(lengths) / rows`` tokens of whole documents.

        Raises:
            ValueError: The lengths are not a flat list of non-negative integers, hold no token, exceed what int32
                offsets can address, or a document crosses the end of a batch row.
        """
        array = np.asarray(lengths)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"document lengths must be a flat list of integers, got {array.dtype} {array.shape}")
        array = array.astype(np.int64)
        if (array < 0).any():
            raise ValueError("document lengths must not be negative; pass differences of increasing offsets")
        array = array[array > 0]
        if not array.size:
            raise ValueError("no tokens: every document length is zero")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(array)])
        total = int(offsets[-1])
        if total > _INT32_MAX or array.max() > _INT32_MAX:
            raise ValueError(f"{total} tokens exceed int32 offsets; split the batch into smaller rows")
        _check_rows(offsets, rows)
        array.setflags(write=False)
        offsets.setflags(write=False)
        self.lengths, self.offsets, self.rows = array, offsets, rows
        self.total, self.count, self.longest = total, array.size, int(array.max())
        self._cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return f"Segments({self.count} documents, {self.total} tokens, longest {self.longest}, rows={self.rows})"

    def cached(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return what was stored under ``key``, building it on first use."""
        if key not in self._cache:
            self._cache[key] = build()
        return self._cache[key]

    def cu_seqlens(self, device: torch.device | str) -> torch.Tensor:
        """Offsets of the documents, int32 ``[n + 1]``, the last entry the total."""
        device = torch.device(device)
        return self.cached(("cu_seqlens", device), lambda: to_device(self.offsets.astype(np.int32), device))

    def seq_idx(self, device: torch.device | str) -> torch.Tensor:
        """Document number of every token, int32 ``[1, N]``."""
        device = torch.device(device)
        return self.cached(("seq_idx", device), lambda: to_device(self._documents(np.int32)[None], device))

    def starts(self, device: torch.device | str) -> torch.Tensor:
        """First token of every document, int64 ``[n]``."""
        device = torch.device(device)
        return self.cached(("starts", device), lambda: to_device(self.offsets[:-1], device))

    def positions(self, device: torch.device | str) -> torch.Tensor:
        """Position of every token in its document, int64 ``[N]``."""
        device = torch.device(device)
        return self.cached(("positions", device), lambda: to_device(self._positions(), device))

    def chunks(self, size: int, device: torch.device | str, layout: Layout = "aligned") -> ChunkPlan:
        """Cut the row into chunks of ``size`` slots.

        Args:
            size: Slots per chunk; a power of two for the ``"shared"`` layout.
            device: Where the plan's tensors live.
            layout: ``"aligned"``: every chunk holds one document. ``"shared"``: the same, but documents of at most
                half a chunk share chunks. ``"row"``: cuts at multiples of ``size``, so chunks are full and may hold
                several documents. See `ChunkPlan`.
        """
        device = torch.device(device)
        return self.cached(("plan", size, layout, device), lambda: ChunkPlan(self.host_plan(size, layout), device))

    def host_plan(self, size: int, layout: Layout = "aligned") -> HostPlan:
        """The host half of `chunks`: numpy arrays, shared by all devices."""
        return self.cached(("host", size, layout), lambda: HostPlan.build(self.offsets, size, layout))

    def _documents(self, dtype: type) -> np.ndarray:
        return np.repeat(np.arange(self.count, dtype=dtype), self.lengths)

    def _positions(self) -> np.ndarray:
        return np.arange(self.total) - np.repeat(self.offsets[:-1], self.lengths)


def _check_rows(offsets: np.ndarray, rows: int) -> None:
    total = int(offsets[-1])
    if rows < 1 or total % rows:
        raise ValueError(f"{total} tokens do not fill {rows} equal batch rows")
    ends = np.arange(1, rows) * (total // rows)
    crossed = ends[~np.isin(ends, offsets)]
    if crossed.size:
        raise ValueError(
            f"a document crosses the end of a batch row at flattened token {int(crossed[0])}; "
            "split it there (a padding tail is a document of its own)"
        )
