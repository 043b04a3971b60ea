"""Boundary-aware depthwise causal convolution by shifted multiply-adds.

Tap ``j`` adds ``weight[:, W-1-j] * x[t-j]`` to ``y[t]`` where both tokens lie in one document. The pairs that do not
are those with ``x[t-j]`` among the last ``j`` tokens of a document, a set that only grows with ``j``: taps are taken in
order of ``j`` on a working copy of ``x`` in which the next rows are zeroed before each. The backward does the same with
the first ``j`` tokens and the incoming gradient. No mask is multiplied, nothing is cancelled, duplicates cannot occur.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..precision import Precision
from ..segments import Segments
from .panel import Panel, Scratch, weights_of
from .taps import taps_of


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
    silu = activation is not None
    return _CausalConv1d.apply(x, weight, bias, segments, silu, silu and torch.is_grad_enabled())


class _CausalConv1d(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, segments, silu, keep):
        row, time = _flatten(x)
        out = torch.empty_like(row)
        kept = torch.empty_like(row) if keep and _worth_keeping(row, time) else None
        for panel in _panels(row, weight, bias, segments, time):
            for block in panel.taps.blocks:
                into = panel.part(out, block)
                if kept is not None:
                    torch.ops.aten.silu.out(panel.convolve(block, panel.part(kept, block)), out=into)
                    continue
                y = panel.convolve(block, into)
                if silu:
                    F.silu(y, inplace=True)
                if y is not into:
                    into.copy_(y)
        ctx.save_for_backward(x, weight, bias, kept)
        ctx.segments, ctx.silu = segments, silu
        return _unflatten(out, x.shape, time)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        x, weight, bias, kept = ctx.saved_tensors
        row, time = _flatten(x)
        grad, dtype = _flatten_like(grad, time), Precision.of(x).state
        dx = torch.empty_like(row, dtype=dtype)
        dcolumns = torch.zeros_like(weight.t(), dtype=dtype, memory_format=torch.contiguous_format)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=dtype)
        for panel in _panels(row, weight, bias, ctx.segments, time):
            for block in panel.taps.blocks:
                y = None if kept is None else panel.part(kept, block)
                dy = panel.differentiate(panel.part(grad, block), block, y, silu=ctx.silu)
                if dbias is not None:
                    dbias[panel.channels] += dy.sum(time)
                panel.accumulate(panel.part(dx), dcolumns, dy, block)
        dx = _unflatten(dx.to(x.dtype), x.shape, time)
        return (
            dx,
            dcolumns.flip(0).t().to(weight.dtype),
            None if bias is None else dbias.to(bias.dtype),
            None,
            None,
            None,
        )


def _worth_keeping(row: torch.Tensor, time: int) -> bool:
    """Whether to keep what the activation was given, one more tensor like ``x``, rather than compute it again.

    Only where transformers' fallback keeps it too and its convolution is quick: on a CPU, where time is contiguous.
    """
    return time == 1 and row.device.type == "cpu" and row.dtype == Precision.of(row).state


def _panels(row, weight, bias, segments: Segments, time: int) -> Iterator[Panel]:
    taps = taps_of(segments, weight.shape[1], row, time)
    dtype = Precision.of(row).state
    columns, scratch = weights_of(weight, time, dtype), Scratch(dtype, row.device)
    offset = None if bias is None else bias.to(dtype).unsqueeze(time)
    for begin in range(0, len(weight), taps.panel):
        yield Panel(row, columns, offset, taps, slice(begin, begin + taps.panel), scratch)


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
