"""Which rows each tap of the convolution must not see, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..chunking import to_device
from ..segments import Segments

_CPU_BLOCK_BYTES = 2**19  # one working copy of a block stays in a core's second-level cache


@dataclass(frozen=True)
class Block:
    """A run of the row worked on at once.

    Attributes:
        begin: First token.
        length: Tokens.
        halo: Tokens before `begin` that the taps reach, fewer at the row's start.
        ends: Per tap j, rows of the block with its halo that are the j-th last of their document, or None.
        starts: Per tap j, rows of the block that are the j-th of their document, or None.
    """

    begin: int
    length: int
    halo: int
    ends: tuple[torch.Tensor | None, ...]
    starts: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True)
class Taps:
    """How a row is worked on: in blocks of tokens where channels are contiguous, in panels of channels where time is.

    Attributes:
        time: Axis of time of the row, 0 or 1; the other holds the channels.
        count: Taps that any document can use.
        panel: Channels worked on at once.
        blocks: The runs of tokens worked on at once.
    """

    time: int
    count: int
    panel: int
    blocks: tuple[Block, ...]


def taps_of(segments: Segments, width: int, row: torch.Tensor, time: int) -> Taps:
    """Plan a convolution of ``width`` taps over ``row``; cached in ``segments``."""
    count, length, panel = min(width, segments.longest), segments.total, row.shape[1 - time]
    if row.device.type == "cpu":
        fit = _CPU_BLOCK_BYTES // max(4, row.element_size())
        if time == 0:
            length = min(length, max(4 * width, fit // panel))
        else:
            panel = min(panel, max(1, fit // length))
    key = ("conv", count, length, row.device)
    blocks = segments.cached(key, lambda: _blocks(segments, count, length, row.device))
    return Taps(time, count, panel, blocks)


def _blocks(segments: Segments, count: int, length: int, device: torch.device) -> tuple[Block, ...]:
    long_enough = [segments.lengths >= j for j in range(count)]
    ends = [segments.offsets[1:][long_enough[j]] - j for j in range(count)]
    starts = [segments.offsets[:-1][long_enough[j]] + j - 1 for j in range(count)]
    blocks = []
    for begin in range(0, segments.total, length):
        end, halo = min(begin + length, segments.total), min(begin, count - 1)
        near = [_within(ends[j], begin - halo, end, device) if j else None for j in range(count)]
        far = [_within(starts[j], begin, end, device) if j else None for j in range(count)]
        blocks.append(Block(begin, end - begin, halo, tuple(near), tuple(far)))
    return tuple(blocks)


def _within(rows: np.ndarray, begin: int, end: int, device: torch.device) -> torch.Tensor | None:
    """The rows in ``[begin, end)``, counted from ``begin``; ``rows`` is sorted."""
    first, last = np.searchsorted(rows, (begin, end))
    return to_device(rows[first:last] - begin, device) if last > first else None
