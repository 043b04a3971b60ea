"""The shifted multiply-adds of a convolution, over some channels at a time and block by block."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from .taps import Block, Taps


class Scratch:
    """Working memory by name, reused by all blocks: on the CPU fresh pages cost more than the arithmetic."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device, self._flat = dtype, device, {}

    def __call__(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """Uninitialised memory of this shape; the last taken under this name is overwritten."""
        size = prod(shape)
        if name not in self._flat or self._flat[name].numel() < size:
            self._flat[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return self._flat[name][:size].view(shape)


class Panel:
    """Some channels of a row ``[N, D]`` or ``[D, N]``, with their weights."""

    def __init__(
        self,
        row: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        taps: Taps,
        channels: slice,
        scratch: Scratch,
    ) -> None:
        self.taps, self.channels, self.scratch = taps, channels, scratch
        self.row = self.part(row)
        shape = (1, -1) if taps.time == 0 else (-1, 1)
        columns = weight[channels].flip(1).unbind(1)[: taps.count]  # the token's own first
        self.columns = [column.reshape(shape).to(scratch.dtype) for column in columns]
        self.offset = None if bias is None else bias[channels].reshape(shape).to(scratch.dtype)

    def part(self, row: torch.Tensor, block: Block | None = None) -> torch.Tensor:
        """This panel's view of a row of the same layout, or of one block of it."""
        part = row[:, self.channels] if self.taps.time == 0 else row[self.channels]
        return part if block is None else part.narrow(self.taps.time, block.begin, block.length)

    def convolve(self, block: Block, into: torch.Tensor | None = None) -> torch.Tensor:
        """Output of one block before the activation, in ``into`` if that has the right dtype, else in scratch."""
        time, length = self.taps.time, block.length
        seen = self.row.narrow(time, block.begin - block.halo, length + block.halo)
        work = self.scratch("work", seen.shape).copy_(seen)
        own = work.narrow(time, block.halo, length)
        if into is None or into.dtype != work.dtype:
            into = self.scratch("y", own.shape)
        y = torch.mul(own, self.columns[0], out=into)
        if self.offset is not None:
            y += self.offset
        for j in range(1, len(self.columns)):
            if (ends := block.ends[j]) is not None:
                work.index_fill_(time, ends, 0)
            skip = max(0, j - block.halo)  # the row begins inside this tap's reach
            if skip < length:
                before = work.narrow(time, block.halo + skip - j, length - skip)
                y.narrow(time, skip, length - skip).addcmul_(before, self.columns[j])
        return y

    def accumulate(self, dx: torch.Tensor, dweight: torch.Tensor, dy: torch.Tensor, block: Block) -> None:
        """Add one block's gradients, the blocks in order: the first tap writes ``dx``, the others add to it.

        Args:
            dx: This panel's part of the gradient of the row.
            dweight: ``[channels, W]``.
            dy: Gradient before the activation; used up.
            block: Where ``dy`` lies.
        """
        time, last = self.taps.time, dweight.shape[1] - 1
        for j, column in enumerate(self.columns):
            if (starts := block.starts[j]) is not None:
                dy.index_fill_(time, starts, 0)
            skip = max(0, j - block.begin)
            if skip >= block.length:
                continue
            got = dy.narrow(time, skip, block.length - skip)
            to, x = (r.narrow(time, block.begin + skip - j, block.length - skip) for r in (dx, self.row))
            if j:
                to.addcmul_(got, column)
            else:
                torch.mul(got, column, out=to)
            dweight[:, last - j] += torch.mul(got, x, out=self.scratch("y", got.shape)).sum(time)
