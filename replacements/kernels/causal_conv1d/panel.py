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
        columns: torch.Tensor,
        offset: torch.Tensor | None,
        taps: Taps,
        channels: slice,
        scratch: Scratch,
    ) -> None:
        """``columns``: each tap's weights, the token's own first, ``[W, 1, D]`` or ``[W, D, 1]``; see `weights_of`."""
        self.taps, self.channels, self.scratch = taps, channels, scratch
        self.row = self.part(row)
        self.columns = self._channels(columns)[: taps.count].unbind(0)
        self.offset = None if offset is None else self._channels(offset)

    def _channels(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., self.channels] if self.taps.time == 0 else x[..., self.channels, :]

    def part(self, row: torch.Tensor, block: Block | None = None) -> torch.Tensor:
        """This panel's view of a row of the same layout, or of one block of it."""
        part = self._channels(row)
        return part if block is None or len(self.taps.blocks) == 1 else self._cut(part, block.begin, block.length)

    def _cut(self, x: torch.Tensor, begin: int, length: int) -> torch.Tensor:
        return x[begin : begin + length] if self.taps.time == 0 else x[:, begin : begin + length]

    def convolve(self, block: Block, into: torch.Tensor | None = None) -> torch.Tensor:
        """Output of one block before the activation, in ``into`` if that has the right dtype, else in scratch."""
        time, length = self.taps.time, block.length
        seen = self._cut(self.row, block.begin - block.halo, length + block.halo)
        work = self.scratch("work", seen.shape).copy_(seen)
        own = self._cut(work, block.halo, length)
        if into is None or into.dtype != work.dtype:
            into = self.scratch("y", own.shape)
        y = torch.mul(own, self.columns[0], out=into)
        if self.offset is not None:
            y += self.offset
        for j in range(1, len(self.columns)):
            if (ends := block.ends[j]) is not None:
                ends.clear(work, time)
            skip = max(0, j - block.halo)  # the row begins inside this tap's reach
            if skip < length:
                before = self._cut(work, block.halo + skip - j, length - skip)
                self._cut(y, skip, length - skip).addcmul_(before, self.columns[j])
        return y

    def differentiate(self, grad: torch.Tensor, block: Block, y: torch.Tensor | None, *, silu: bool) -> torch.Tensor:
        """Gradient of one block before the activation, in scratch; from that after it and what `convolve` returned."""
        into = self.scratch("y", grad.shape)
        if not silu:
            return into.copy_(grad)
        y = self.convolve(block) if y is None else y  # in scratch, where it is overwritten: less to hold in a cache
        grad = grad if grad.dtype == y.dtype else self.scratch("work", grad.shape).copy_(grad)
        return torch.ops.aten.silu_backward.grad_input(grad, y, grad_input=into)

    def accumulate(self, dx: torch.Tensor, dcolumns: torch.Tensor, dy: torch.Tensor, block: Block) -> None:
        """Add one block's gradients, the blocks in order: the first tap writes ``dx``, the others add to it.

        Args:
            dx: This panel's part of the gradient of the row.
            dcolumns: That of every tap's weights, ``[W, D]``.
            dy: Gradient before the activation; used up.
            block: Where ``dy`` lies.
        """
        time = self.taps.time
        dcolumns = dcolumns[:, self.channels].unbind(0)
        for j, column in enumerate(self.columns):
            if (starts := block.starts[j]) is not None:
                starts.clear(dy, time)
            skip = max(0, j - block.begin)
            if skip >= block.length:
                continue
            length = block.length - skip
            got = self._cut(dy, skip, length)
            to, x = (self._cut(r, block.begin + skip - j, length) for r in (dx, self.row))
            if j:
                to.addcmul_(got, column)
            else:
                torch.mul(got, column, out=to)
            product = torch.mul(got, x, out=self._cut(self.scratch("work", dy.shape), 0, length))
            dcolumns[j].add_(product.sum(time))


def weights_of(weight: torch.Tensor, time: int, dtype: torch.dtype) -> torch.Tensor:
    """The columns of ``[D, W]``, the last first, to meet a row: ``[W, 1, D]``, or ``[W, D, 1]`` where time is last."""
    return weight.to(dtype).flip(1).t().contiguous().unsqueeze(1 if time == 0 else 2)
