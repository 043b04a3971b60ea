"""The selective scan one token at a time: the reference for tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..segments import Segments


def naive_selective_scan(
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
    """Compute what `selective_scan` computes, for the same arguments, with one step per token."""
    dtype, exact = u.dtype, torch.float64 if u.dtype == torch.float64 else torch.float32
    rows, channels, tokens = u.shape
    u, delta, A, B, C = (t.to(exact) for t in (u, delta, A, B, C))
    if delta_bias is not None:
        delta = delta + delta_bias.to(exact)[:, None]
    if delta_softplus:
        delta = F.softplus(delta)
    starts = set(segments.offsets.tolist())
    outputs = []
    for row in range(rows):
        state = u.new_zeros(channels, A.shape[1])
        for t in range(tokens):
            if row * tokens + t in starts:
                state = torch.zeros_like(state)
            step = delta[row, :, t, None]
            state = torch.exp(step * A) * state + step * u[row, :, t, None] * B[row, :, t]
            outputs.append(state @ C[row, :, t])
    y = torch.stack(outputs).view(rows, tokens, channels).transpose(1, 2)
    if D is not None:
        y = y + u * D.to(exact)[:, None]
    if z is not None:
        y = y * F.silu(z.to(exact))
    return y.to(dtype)
