"""Boundary-aware depthwise causal convolution by shifted multiply-adds.

Tap ``j`` adds ``weight[:, W-1-j] * x[t-j]`` to ``y[t]`` where both tokens lie in one document. The pairs that do not
are those with ``x[t-j]`` among the last ``j`` tokens of a document, a set that only grows with ``j``: taps are taken in
order of ``j`` on a working copy of ``x`` in which the next rows are zeroed before each. The backward does the same with
the first ``j`` tokens and the incoming gradient. No mask is multiplied, nothing is cancelled, duplicates cannot occur.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..precision import Precision
from ..segments import Segments
from .taps import Block, Taps, taps_of


def causal_conv1d(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    segments: Segments,
    activation: str | None = None,
) -> torch.Tensor:
    """Depthwise causal convolution of each document alone, with an optional activation.

    Args:
        x: ``[B, D, T]``, any strides; channels-last memory (a transposed ``[B, T, D]``) is kept as it is.
        weight: ``[D, W]``; the last column multiplies the token itself.
        bias: ``[D]`` or None.
        segments: Documents of the flattened row of ``B * T`` tokens.
        activation: ``"silu"`` (or its other name ``"swish"``) or None.

    Returns:
        ``[B, D, T]`` in the dtype of ``x``, accumulated in float32 (float64 for float64).

    Raises:
        ValueError: Shapes disagree with each other or with ``segments``, or the activation is not known.
    """
    if activation not in (None, "silu", "swish"):
        raise ValueError(f"activation must be None, 'silu' or 'swish', got {activation!r}")
    if x.dim() != 3 or weight.dim() != 2 or weight.shape[0] != x.shape[1]:
        raise ValueError(f"expected x [B, D, T] and weight [D, W], got {tuple(x.shape)} and {tuple(weight.shape)}")
    if x.shape[0] * x.shape[2] != segments.total:
        raise ValueError(f"x holds {x.shape[0] * x.shape[2]} tokens but the documents hold {segments.total}")
    return _CausalConv1d.apply(x, weight, bias, segments, activation is not None)


class _CausalConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, segments, silu):
        ctx.save_for_backward(x, weight, bias)
        ctx.segments, ctx.silu = segments, silu
        dtype = Precision.of(x).state
        row, time = _flatten(x)
        taps = taps_of(segments, weight.shape[1], row, time)
        columns, offset = _columns(weight, bias, taps, dtype)
        out = torch.empty_like(row)
        for block in taps.blocks:
            y = _convolve(row, columns, offset, taps, block, dtype)
            if silu:
                F.silu(y, inplace=True)
            out.narrow(time, block.begin, block.length).copy_(y)
        return _unflatten(out, x.shape, time)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        dtype = Precision.of(x).state
        row, time = _flatten(x)
        grad_row = _flatten_like(grad, time)
        taps = taps_of(ctx.segments, weight.shape[1], row, time)
        columns, offset = _columns(weight, bias, taps, dtype)
        dx = torch.zeros_like(row, dtype=dtype)
        dweight = torch.zeros_like(weight, dtype=dtype)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=dtype)
        for block in taps.blocks:
            dy = grad_row.narrow(time, block.begin, block.length).to(dtype, copy=True)
            if ctx.silu:
                dy = torch.ops.aten.silu_backward(dy, _convolve(row, columns, offset, taps, block, dtype))
            if dbias is not None:
                dbias += dy.sum(time)
            _accumulate(dx, dweight, dy, row, columns, taps, block)
        dx = _unflatten(dx.to(x.dtype), x.shape, time)
        return dx, dweight.to(weight.dtype), None if bias is None else dbias.to(bias.dtype), None, None


def _convolve(row, columns, offset, taps: Taps, block: Block, dtype) -> torch.Tensor:
    """Output of one block before the activation."""
    time = taps.time
    work = row.narrow(time, block.begin - block.halo, block.length + block.halo).to(dtype, copy=True)
    y = work.narrow(time, block.halo, block.length) * columns[0]
    if offset is not None:
        y += offset
    for j in range(1, len(columns)):
        if (ends := block.ends[j]) is not None:
            work.index_fill_(time, ends, 0)
        skip = max(0, j - block.halo)  # the row begins inside this tap's reach
        if skip < block.length:
            seen = work.narrow(time, block.halo + skip - j, block.length - skip)
            y.narrow(time, skip, block.length - skip).addcmul_(seen, columns[j])
    return y


def _accumulate(dx, dweight, dy, row, columns, taps: Taps, block: Block) -> None:
    """Add one block's gradients. ``dy`` is used up."""
    time, last = taps.time, dweight.shape[1] - 1
    for j in range(len(columns)):
        if (starts := block.starts[j]) is not None:
            dy.index_fill_(time, starts, 0)
        skip = max(0, j - block.begin)
        if skip >= block.length:
            continue
        got = dy.narrow(time, skip, block.length - skip)
        begin, length = block.begin + skip - j, block.length - skip
        dx.narrow(time, begin, length).addcmul_(got, columns[j])
        dweight[:, last - j] += (got * row.narrow(time, begin, length)).sum(time)


def _flatten(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """One row of tokens, ``[N, D]`` where channels are contiguous, else ``[D, N]``; and which axis is time."""
    time = 0 if x.stride(1) == 1 and x.shape[1] > 1 else 1
    return _flatten_like(x, time), time


def _flatten_like(x: torch.Tensor, time: int) -> torch.Tensor:
    batch, channels, length = x.shape
    if time == 0:
        return x.transpose(1, 2).reshape(batch * length, channels)
    return x.transpose(0, 1).reshape(channels, batch * length)


def _unflatten(row: torch.Tensor, shape: torch.Size, time: int) -> torch.Tensor:
    batch, channels, length = shape
    if time == 0:
        return row.view(batch, length, channels).transpose(1, 2)
    return row.view(channels, batch, length).transpose(0, 1)


def _columns(weight, bias, taps: Taps, dtype) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """The taps' weights, the token's own first, and the bias, shaped to multiply a row."""
    shape = (1, -1) if taps.time == 0 else (-1, 1)
    columns = [c.reshape(shape).to(dtype) for c in weight.flip(1).unbind(1)[: taps.count]]
    return columns, None if bias is None else bias.reshape(shape).to(dtype)
