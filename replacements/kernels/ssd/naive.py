"""The Mamba-2 recurrence one token at a time: the reference for tests."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..segments import Segments


def naive_ssd(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    segments: Segments,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> torch.Tensor:
    """Compute what `ssd` computes, for the same arguments, with one step per token."""
    dtype, exact = x.dtype, torch.float64 if x.dtype == torch.float64 else torch.float32
    rows, tokens, heads, width = x.shape
    x, dt, A, B, C = (t.to(exact) for t in (x, dt, A, B, C))
    if dt_bias is not None:
        dt = dt + dt_bias.to(exact)
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(*dt_limit)
    B, C = (t.repeat_interleave(heads // t.shape[2], dim=2) for t in (B, C))
    starts = set(segments.offsets.tolist())
    outputs = []
    for row in range(rows):
        state = x.new_zeros(heads, width, B.shape[3])
        for t in range(tokens):
            if row * tokens + t in starts:
                state = torch.zeros_like(state)
            decay = torch.exp(dt[row, t] * A)[:, None, None]
            state = decay * state + torch.einsum("h,hp,hn->hpn", dt[row, t], x[row, t], B[row, t])
            outputs.append(torch.einsum("hpn,hn->hp", state, C[row, t]))
    y = torch.stack(outputs).view(rows, tokens, heads, width)
    if D is not None:
        y = y + x * (D.to(exact) if D.ndim == 2 else D.to(exact)[:, None])
    if z is not None:
        y = y * F.silu(z.to(exact))
    return y.to(dtype)
