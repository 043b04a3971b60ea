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
    positions = _positions_on_host(kwargs, rows, length)
    starts = _explicit_starts(kwargs, rows, length)
    restarts = None if positions is None else _starts_of_changes(positions, step=1)
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


def _positions_on_host(kwargs: Mapping[str, Any], rows: int, length: int) -> np.ndarray | None:
    """The text positions, where they can tell documents apart.

    They cannot in padded rows, where they count the tokens behind the padding, nor beside a cache, where they go on
    from an earlier call; reading them there would also cost generation a synchronisation for every token.
    """
    positions = kwargs.get("position_ids")
    explicit = any(kwargs.get(name) is not None for name in EXPLICIT)
    if positions is None or length == 1 or any(kwargs.get(name) is not None for name in CACHES):
        return None
    if not explicit and _has_padding(kwargs.get("attention_mask")):
        return None
    return _rows_on_host(text_plane(positions), rows, length, "position_ids")


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


def _has_padding(attention_mask: Any) -> bool:
    """Whether a mask hides tokens: then the positions count real tokens and do not say where documents start."""
    if attention_mask is None:
        return False
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 2:
        return True
    return not bool(attention_mask.all())


def _shown(values: np.ndarray) -> str:
    head = ", ".join(str(value) for value in values[:6])
    return f"[{head}{', …' if values.size > 6 else ''}]"
