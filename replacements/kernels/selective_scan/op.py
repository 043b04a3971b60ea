"""Selective scan over packed documents.

Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", 2023, equations 2 and 4 and
algorithm 2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from ..precision import Precision
from ..segments import Segments
from .scan import BlockedScan


def selective_scan(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    segments: Segments,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
) -> torch.Tensor:
    """Run a diagonal state-space recurrence over each document, starting from a zero state.

    With Δ = softplus(delta + delta_bias) (each part as the arguments ask), for every channel d and token t::

        h[t] = exp(Δ[t] A[d]) h[t - 1] + Δ[t] u[t] B[t]        h is [N]; h[t - 1] is 0 at a document's first token
        y[t] = (C[t] · h[t] + D[d] u[t]) silu(z[t])

    State and gradients of the state are held for one block of tokens at a time, so memory does not grow with
    ``T * d * N``; the backward pass recomputes each block from the state at its start.

    Args:
        u: Input, ``[B, d, T]``, float32, float64, bfloat16 or float16.
        delta: Step size before bias and softplus, ``[B, d, T]``.
        A: Continuous-time decay, ``[d, N]``; negative in trained models.
        B: Input projection, ``[B, N, T]``.
        C: Output projection, ``[B, N, T]``.
        segments: Documents of the row(s), ``B * T`` tokens in all.
        D: Skip connection, ``[d]``.
        z: Gate, ``[B, d, T]``.
        delta_bias: Added to ``delta``, ``[d]``.
        delta_softplus: Whether to apply softplus to ``delta``.

    Returns:
        ``[B, d, T]`` in the dtype of ``u``, the channels adjacent in memory. The recurrence runs in float32 (float64
        for float64 inputs).

    Raises:
        ValueError: Shapes disagree with each other or with ``segments``.
    """
    _check(u, delta, A, B, C, segments, D, z, delta_bias)
    rows, channels, tokens = u.shape
    exact = Precision.of(u).state
    step = _TokenMajor.apply(delta).to(exact)
    if delta_bias is not None:
        step = step + delta_bias.to(exact)
    if delta_softplus:
        step = F.softplus(step)
    u, B, C = (_TokenMajor.apply(t) for t in (u, B, C))
    z = None if z is None else _TokenMajor.apply(z)
    D = None if D is None else D.to(exact)
    y = BlockedScan.apply(u, step, A.to(exact), B, C, D, z, segments)
    return y.view(rows, tokens, channels).transpose(1, 2)


class _TokenMajor(torch.autograd.Function):
    """``[B, d, T]`` to contiguous ``[B * T, d]``; the gradient comes back in the layout of the input.

    One transpose of the whole row costs less than strided reads in every block, and less than what follows in the
    caller's backward pass when a gradient is laid out unlike its tensor.
    """

    @staticmethod
    def forward(ctx, x):
        ctx.shape, ctx.channel_major = x.shape, x.stride(2) == 1
        if ctx.channel_major:
            return _transposed(x).view(-1, x.shape[1])
        return x.transpose(1, 2).reshape(-1, x.shape[1]).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        rows, channels, tokens = ctx.shape
        grad = grad.view(rows, tokens, channels)
        return _transposed(grad) if ctx.channel_major else grad.transpose(1, 2)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """``[B, m, n]`` to contiguous ``[B, n, m]``; row by row, because torch blocks only copies of matrices."""
    out = x.new_empty(x.shape[0], x.shape[2], x.shape[1])
    for row, source in zip(out, x, strict=True):
        row.copy_(source.t())
    return out


def _check(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    segments: Segments,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
) -> None:
    if u.ndim != 3:
        raise ValueError(f"u must be [B, d, T], got {tuple(u.shape)}")
    rows, channels, tokens = u.shape
    if A.ndim != 2 or A.shape[0] != channels:
        raise ValueError(f"A must be [d, N] with d={channels}, got {tuple(A.shape)}")
    expected = {
        "delta": (delta, u.shape),
        "B": (B, (rows, A.shape[1], tokens)),
        "C": (C, (rows, A.shape[1], tokens)),
        "D": (D, (channels,)),
        "z": (z, u.shape),
        "delta_bias": (delta_bias, (channels,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != tuple(shape):
            raise ValueError(f"{name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
    if segments.total != rows * tokens:
        raise ValueError(f"segments cover {segments.total} tokens, the input has {rows} x {tokens}")
