"""Finds where the documents of a batch start, from what the caller passed.

Sources, the most explicit first: `seq_idx`, `cu_seq_lens_q` (or `cu_seqlens`), `packed_seq_lengths`, and at last
`position_ids`. An explicit source is never overruled by a derived one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from replacements.kernels.segments import Segments

#: Keyword arguments that say where documents start, in order of precedence.
EXPLICIT = ("seq_idx", "cu_seq_lens_q", "cu_seqlens", "packed_seq_lengths")

#: Keyword arguments that hold the state of earlier calls.
CACHES = ("past_key_values", "cache", "cache_params")


class BoundaryError(ValueError):
    """Boundaries that contradict the batch they came with."""


def find_documents(kwargs: Mapping[str, Any], rows: int, length: int) -> tuple[Segments | None, bool]:
    """The documents of a batch of `rows` rows of `length` tokens.

    Boundary tensors are read on the host once: at most one synchronisation of the device.

    Args:
        kwargs: Keyword arguments of a model's forward.
        rows: Batch size B.
        length: Tokens per row T, padding included.

    Returns:
        The segments of the flattened row of B·T tokens, `None` when every row is a single document; and whether
        `position_ids` restart wherever a document starts, which is what attention goes by.

    Raises:
        BoundaryError: The boundaries do not fit a batch of this shape.
    """
    restarts = _restarts(kwargs, rows, length)
    starts = _explicit_starts(kwargs, rows, length)
    if starts is None:
        starts = restarts
    if starts is None or len(starts) == rows:
        return None, True
    agree = restarts is not None and bool(np.isin(starts, restarts, assume_unique=True).all())
    return Segments(np.diff(starts, append=rows * length), rows=rows), agree


def segments_to_seq_idx(segments: Segments, device: torch.device | str = "cpu") -> torch.Tensor:
    """`seq_idx` as it travels in a batch: int32 `[rows, T]`, the number of the document of each token in its row."""
    flat = segments.seq_idx(device).view(segments.rows, -1)
    return flat - flat[:, :1]


def segments_to_positions(segments: Segments, device: torch.device | str = "cpu") -> torch.Tensor:
    """`position_ids` int64 `[rows, T]`, counted from zero in each document."""
    return segments.positions(device).view(segments.rows, -1)


def _explicit_starts(kwargs: Mapping[str, Any], rows: int, length: int) -> np.ndarray | None:
    for name in EXPLICIT:
        value = kwargs.get(name)
        if value is None:
            continue
        if name == "seq_idx":
            return _starts_of_changes(_rows_on_host(value, rows, length, name), step=0)
        if name == "packed_seq_lengths":
            value = np.concatenate([[0], np.cumsum(_host(value).ravel())])
        return _starts_of_cumulative(_host(value).ravel(), rows, length, name)
    return None


def _restarts(kwargs: Mapping[str, Any], rows: int, length: int) -> np.ndarray | None:
    """Where the positions of text restart, in flat indices; `None` without positions.

    One token is never packed: generation is spared a synchronisation for every token. In padded rows the positions
    count the tokens that the mask keeps, so restarts are looked for among those, and padding is set apart.
    """
    positions = kwargs.get("position_ids")
    if positions is None or length == 1:
        return None
    positions = _rows_on_host(text_plane(positions), rows, length, "position_ids")
    kept = _kept_on_host(kwargs.get("attention_mask"), rows, length)
    if kept is None:
        return _starts_of_changes(positions, step=1)
    return _restarts_among(positions, kept)


def _restarts_among(positions: np.ndarray, kept: np.ndarray) -> np.ndarray:
    follows = np.diff(positions, axis=1) == 1
    both = kept[:, 1:] & kept[:, :-1]
    if not np.any(both & ~follows):  # padded rows of one document each
        return np.arange(len(positions)) * positions.shape[1]
    changed = np.ones(positions.shape, dtype=bool)
    changed[:, 1:] = (both & ~follows) | (kept[:, 1:] != kept[:, :-1])
    return np.flatnonzero(changed)


def _kept_on_host(attention_mask: Any, rows: int, length: int) -> np.ndarray | None:
    """Which tokens a two-dimensional mask keeps; `None` if it keeps all, or is of another kind and says nothing."""
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 2:
        return None
    kept = _host(attention_mask).astype(bool)[:, -length:]
    return None if kept.shape != (rows, length) or kept.all() else kept


def text_plane(position_ids: torch.Tensor) -> torch.Tensor:
    """The `[B, T]` plane that counts text tokens.

    Multimodal rope stacks planes as `[3, B, T]` (time, height, width) or `[4, B, T]` (text first); in both the
    first plane advances by one for each text token.
    """
    return position_ids[0] if position_ids.ndim == 3 else position_ids


def _starts_of_changes(values: np.ndarray, step: int) -> np.ndarray:
    """Flat indices at which a row starts or a value is not its predecessor plus `step`."""
    changed = np.ones(values.shape, dtype=bool)
    changed[:, 1:] = np.diff(values, axis=1) != step
    return np.flatnonzero(changed)


def _starts_of_cumulative(cumulative: np.ndarray, rows: int, length: int, name: str) -> np.ndarray:
    total = rows * length
    cumulative = cumulative.astype(np.int64)
    if cumulative.size == 0 or cumulative[0] != 0 or np.any(np.diff(cumulative) < 0) or cumulative[-1] > total:
        raise BoundaryError(
            f"`{name}` must rise from 0 to at most the {total} tokens of the batch, got {_shown(cumulative)}. "
            "Build it from the lengths of the documents in this batch."
        )
    # What lies behind the last boundary is padding: one more segment, so that the last boundary is the row's end.
    inner = np.union1d(cumulative[cumulative < total], np.arange(rows, dtype=np.int64) * length)
    return inner


def _rows_on_host(value: torch.Tensor, rows: int, length: int, name: str) -> np.ndarray:
    host = _host(value)
    host = host[None] if host.ndim == 1 else host
    if host.shape[-1] != length or host.shape[0] not in (1, rows):
        raise BoundaryError(
            f"`{name}` has shape {tuple(host.shape)} but the batch is [{rows}, {length}]. Pass one value per token; "
            "a model that adds tokens of its own (prompt tuning) cannot be trained on packed rows."
        )
    return np.broadcast_to(host, (rows, length))


def _host(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _shown(values: np.ndarray) -> str:
    head = ", ".join(str(value) for value in values[:6])
    return f"[{head}{', …' if values.size > 6 else ''}]"
