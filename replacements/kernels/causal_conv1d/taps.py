"""Which rows each tap of the convolution must not see, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..chunking import to_device
from ..precision import Precision
from ..segments import Segments

_CPU_BLOCK_BYTES = 2**19  # one working copy of a block stays in a core's second-level cache
_CPU_BLOCK_TOKENS = 4096  # where time is contiguous; more of them, and a panel is too few channels to pay its calls
_DENSE = 1 / 128  # share of a block's tokens from which clearing bits of all of them is quicker than indexing some


@dataclass(frozen=True)
class Rows:
    """Tokens of a block that a tap must not see, in one of two forms.

    Attributes:
        index: Which, int64 ``[n]``.
        keep: All bits set in the tokens to keep and none in the others, an integer as wide as the numbers of the
            working copy, ``[1, length]``; None where the index is quicker.
    """

    index: torch.Tensor
    keep: torch.Tensor | None

    def clear(self, x: torch.Tensor, time: int) -> None:
        """Set the tokens of ``x`` to zero, whatever they hold: cleared bits are a zero where a product may be NaN."""
        if self.keep is None:
            x.index_fill_(time, self.index, 0)
        else:
            x.view(self.keep.dtype).bitwise_and_(self.keep)


@dataclass(frozen=True)
class Block:
    """A run of the row worked on at once.

    Attributes:
        begin: First token.
        length: Tokens.
        halo: Tokens before `begin` that the taps reach, fewer at the row's start.
        ends: Per tap j, tokens of the block with its halo that are the j-th last of their document, or None.
        starts: Per tap j, tokens of the block that are the j-th of their document, or None.
    """

    begin: int
    length: int
    halo: int
    ends: tuple[Rows | None, ...]
    starts: tuple[Rows | None, ...]


@dataclass(frozen=True)
class Taps:
    """How a row is worked on: in blocks of tokens, where time is contiguous also in panels of channels.

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
        fit = _CPU_BLOCK_BYTES * torch.get_num_threads() // max(4, row.element_size())
        if time == 0:
            length = min(length, max(4 * width, fit // panel))
        else:
            length = min(length, max(4 * width, min(fit, _CPU_BLOCK_TOKENS)))
            panel = min(panel, max(1, fit // length))
    bits = torch.int64 if Precision.of(row).state == torch.float64 else torch.int32
    bits = bits if time == 1 and row.device.type == "cpu" else None
    key = ("conv", count, length, row.device, bits)
    blocks = segments.cached(key, lambda: _blocks(segments, count, length, row.device, bits))
    return Taps(time, count, panel, blocks)


def _blocks(
    segments: Segments, count: int, length: int, device: torch.device, bits: torch.dtype | None
) -> tuple[Block, ...]:
    long_enough = [segments.lengths >= j for j in range(count)]
    ends = [segments.offsets[1:][long_enough[j]] - j for j in range(count)]
    starts = [segments.offsets[:-1][long_enough[j]] + j - 1 for j in range(count)]
    blocks = []
    for begin in range(0, segments.total, length):
        end, halo = min(begin + length, segments.total), min(begin, count - 1)
        near = [_within(ends[j], begin - halo, end, device, bits) if j else None for j in range(count)]
        far = [_within(starts[j], begin, end, device, bits) if j else None for j in range(count)]
        blocks.append(Block(begin, end - begin, halo, tuple(near), tuple(far)))
    return tuple(blocks)


def _within(tokens: np.ndarray, begin: int, end: int, device: torch.device, bits: torch.dtype | None) -> Rows | None:
    """The tokens in ``[begin, end)``, counted from ``begin``; ``tokens`` is sorted."""
    first, last = np.searchsorted(tokens, (begin, end))
    if last == first:
        return None
    index, keep = to_device(tokens[first:last] - begin, device), None
    if bits is not None and last - first >= _DENSE * (end - begin):
        keep = torch.full((1, end - begin), -1, dtype=bits, device=device).index_fill_(1, index, 0)
    return Rows(index, keep)
