"""The recurrence, one token and one document at a time: slow, for tests."""

from __future__ import annotations

import torch

from ..segments import Segments


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    segments: Segments,
    scale: float | None = None,
    qk_l2norm: bool = False,
) -> torch.Tensor:
    """Run every document alone. Arguments and result as the fast form's; ``g`` may have a last axis K."""
    heads, width = v.shape[2], q.shape[-1]
    q, k, v, g, beta = (x.reshape(-1, *x.shape[2:]) for x in (q, k, v, g, beta))
    q, k = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (q, k))
    if qk_l2norm:
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q = q * (width**-0.5 if scale is None else scale)
    decay = (g if g.dim() == 3 else g.unsqueeze(-1)).exp().unsqueeze(-1)  # [N, H, K or 1, 1]
    outputs = []
    for begin, length in zip(segments.offsets.tolist(), segments.lengths.tolist(), strict=False):
        state = v.new_zeros(heads, width, v.shape[-1])
        for t in range(begin, begin + length):
            state = state * decay[t]
            error = v[t] - torch.einsum("hkv,hk->hv", state, k[t])
            state = state + torch.einsum("hk,hv->hkv", k[t], error * beta[t].unsqueeze(-1))
            outputs.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(outputs).view(segments.rows, -1, heads, v.shape[-1])
