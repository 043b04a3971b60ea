"""Finds where the documents of a batch start, from what the caller passed.

Sources, the most explicit first: `seq_idx`, `cu_seq_lens_q` (or `cu_seqlens`), `packed_seq_lengths`, and at last
`position_ids`. An explicit source is never overruled by a derived one, and positions that contradict it are an error.
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

    All that is read of a device is read in one copy: at most one synchronisation.

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
    said = _on_host(kwargs, length)
    planes = _planes(said.get("position_ids"), rows, length)
    kept = _kept(said.get("attention_mask"), rows, length)
    restarts = None if planes is None else _restarts(planes, kept)
    name, starts = _explicit_starts(said, rows, length)
    if starts is None or (restarts is not None and np.array_equal(starts, restarts)):
        starts, agree = restarts, True
    elif restarts is None:
        agree = False
    else:
        _check_positions(planes[0], kept, restarts, starts, name)
        agree = bool(np.isin(starts, restarts, assume_unique=True).all())
    if starts is None or len(starts) == rows:
        return None, True
    return Segments(np.diff(starts, append=rows * length), rows=rows), agree


def segments_to_seq_idx(segments: Segments, device: torch.device | str = "cpu") -> torch.Tensor:
    """`seq_idx` as it travels in a batch: int32 `[rows, T]`, the number of the document of each token in its row."""
    flat = segments.seq_idx(device).view(segments.rows, -1)
    return flat - flat[:, :1]


def segments_to_positions(segments: Segments, device: torch.device | str = "cpu") -> torch.Tensor:
    """`position_ids` int64 `[rows, T]`, counted from zero in each document."""
    return segments.positions(device).view(segments.rows, -1)


def _on_host(kwargs: Mapping[str, Any], length: int) -> dict[str, np.ndarray]:
    """What is to be known of a batch, by name: one explicit source, and the positions with the mask they go by.

    One token is never packed by its positions: generation is spared a synchronisation for every token.
    """
    names = [name for name in EXPLICIT if kwargs.get(name) is not None][:1]
    if length > 1 and kwargs.get("position_ids") is not None:
        mask = kwargs.get("attention_mask")
        flat = isinstance(mask, torch.Tensor) and mask.ndim == 2  # of another kind, it says nothing here
        names += ["position_ids", "attention_mask"] if flat else ["position_ids"]
    remote = [name for name in names if isinstance(kwargs[name], torch.Tensor) and kwargs[name].device.type != "cpu"]
    arrays = dict(zip(remote, _fetch([kwargs[name] for name in remote]), strict=True))
    return {name: arrays[name] if name in arrays else np.asarray(kwargs[name]) for name in names}


def _fetch(tensors: list[torch.Tensor]) -> list[np.ndarray]:
    """Integer tensors of one device, copied to the host together."""
    if not tensors:
        return []
    device = tensors[0].device
    # In 32 bits, which hold every offset that `Segments` takes: the copy is what the forward waits for.
    joined = torch.cat([tensor.detach().to(device, torch.int32).flatten() for tensor in tensors]).cpu().numpy()
    parts = np.split(joined, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
    return [part.reshape(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def _explicit_starts(said: Mapping[str, np.ndarray], rows: int, length: int) -> tuple[str, np.ndarray | None]:
    for name in EXPLICIT:
        value = said.get(name)
        if value is None:
            continue
        if name == "seq_idx":
            numbers = _by_rows(value, rows, length, name)
            return name, _starts_of(numbers[:, 1:] != numbers[:, :-1])
        value = value.ravel()
        if name == "packed_seq_lengths":
            value = np.append(0, np.cumsum(value))
        return name, _starts_of_cumulative(value, rows, length, name)
    return "", None


def _planes(positions: np.ndarray | None, rows: int, length: int) -> np.ndarray | None:
    """Positions as `[planes, B, T]`, one plane unless they are those of multimodal rope; `None` if there are none."""
    if positions is None:
        return None
    planes = positions if positions.ndim == 3 else [positions]
    return np.stack([_by_rows(plane, rows, length, "position_ids") for plane in planes])


def _restarts(planes: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
    """Where the positions of text restart, in flat indices.

    In padded rows the positions count the tokens that the mask keeps, so restarts are looked for among those, and
    padding is set apart.
    """
    breaks = _breaks(planes)
    if kept is None:
        return _starts_of(breaks)
    breaks = breaks & kept[:, 1:] & kept[:, :-1]
    if not breaks.any():  # padded rows of one document each
        return np.arange(len(kept)) * kept.shape[1]
    return _starts_of(breaks | (kept[:, 1:] != kept[:, :-1]))


def _breaks(planes: np.ndarray) -> np.ndarray:
    """Where positions `[planes, B, T]` restart, as booleans `[B, T - 1]` for all tokens but the first.

    A plane of text, alone or in front of three others, advances by one. Where time, height and width come without
    it, time stands still in an image and jumps behind it: a document starts where time falls back to where it began.
    A document of one token leaves it there, with all planes equal, as they are for text alone.
    """
    first = planes[0]
    if len(planes) in (1, 4):
        return np.diff(first, axis=1) != 1
    step, begun = np.diff(first, axis=1), first[:, 1:] <= first[:, :1]
    text = (planes == first).all(0)[:, 1:]
    return begun & ((step < 0) | ((step == 0) & text))


def _check_positions(
    positions: np.ndarray, kept: np.ndarray | None, restarts: np.ndarray, starts: np.ndarray, name: str
) -> None:
    """Raises if positions fall back inside a document of `name`: one of the two has lost a boundary.

    A jump ahead is a way to number one document, and positions that stand still at the end of a row are padding.
    """
    length = positions.shape[1]
    row, column = np.divmod(np.setdiff1d(restarts, starts, assume_unique=True), length)
    wrong = positions[row, column] <= positions[row, column - 1]
    standing = (positions[:, ::-1] != positions[:, -1:]).argmax(1)
    wrong &= column < length - standing[row]
    if kept is not None:
        wrong &= kept[row, column] & kept[row, column - 1]
    if wrong.any():
        at = int(wrong.argmax())
        raise BoundaryError(
            f"`position_ids` restart at token {column[at]} of row {row[at]}, and `{name}` has no document start there. "
            "One of them lost a boundary: leave the wrong one out, or let both say where documents start."
        )


def _kept(attention_mask: np.ndarray | None, rows: int, length: int) -> np.ndarray | None:
    """Which tokens a mask `[B, T]` keeps; `None` if it keeps all, or is that of another batch."""
    if attention_mask is None:
        return None
    kept = attention_mask.astype(bool)[:, -length:]
    return None if kept.shape != (rows, length) or kept.all() else kept


def _starts_of(breaks: np.ndarray) -> np.ndarray:
    """Flat indices at which a row starts or has a break, given as `[B, T - 1]` for all tokens but the first."""
    starts = np.ones((breaks.shape[0], breaks.shape[1] + 1), bool)
    starts[:, 1:] = breaks
    return np.flatnonzero(starts)


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


def _by_rows(values: np.ndarray, rows: int, length: int, name: str) -> np.ndarray:
    values = values[None] if values.ndim == 1 else values
    if values.shape[-1] != length or values.shape[0] not in (1, rows):
        raise BoundaryError(
            f"`{name}` has shape {values.shape} but the batch is [{rows}, {length}]. Pass one value per token; "
            "a model that adds tokens of its own (prompt tuning) cannot be trained on packed rows."
        )
    return np.broadcast_to(values, (rows, length))


def _shown(values: np.ndarray) -> str:
    head = ", ".join(str(value) for value in values[:6])
    return f"[{head}{', …' if values.size > 6 else ''}]"
