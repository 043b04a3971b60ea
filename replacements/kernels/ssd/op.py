"""State-space duality over packed documents.

Source: Dao and Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space
Duality", 2024, sections 6 and 7 (the block decomposition) and listing 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..precision import Precision
from ..segments import Segments
from .chunks import ChunkedScan
from .plan import Heads, plan_blocks


def ssd(
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
    """Run the Mamba-2 recurrence over each document, starting from a zero state.

    With Δ = clamp(softplus(dt + dt_bias), dt_limit) (each part as the arguments ask), for every head and token t::

        h[t] = exp(Δ[t] A) h[t - 1] + Δ[t] x[t] ⊗ B[t]         h is [P, N]; h[t - 1] is 0 at a document's first token
        y[t] = (h[t] C[t] + D x[t]) silu(z[t])

    Args:
        x: Input, ``[B, T, H, P]``, float32, float64, bfloat16 or float16.
        dt: Step size before bias, softplus and limits, ``[B, T, H]``.
        A: Continuous-time decay, ``[H]``; negative in trained models.
        B: Input projection, ``[B, T, G, N]``; G divides H and consecutive heads share a group.
        C: Output projection, ``[B, T, G, N]``.
        segments: Documents of the row(s), ``B * T`` tokens in all.
        D: Skip connection, ``[H]`` or ``[H, P]``.
        z: Gate, ``[B, T, H, P]``.
        dt_bias: Added to ``dt``, ``[H]``.
        dt_softplus: Whether to apply softplus to ``dt``.
        dt_limit: Bounds of the step size.

    Returns:
        Contiguous ``[B, T, H, P]`` in the dtype of ``x``. Products and states are in float32 (float64 for float64
        inputs).

    Raises:
        ValueError: Shapes disagree with each other or with ``segments``.
    """
    _check(x, dt, A, B, C, segments, D, z, dt_bias)
    rows, tokens, heads, width = x.shape
    precision = Precision.of(x)
    exact = precision.state
    step = dt.reshape(-1, heads).to(exact)
    if dt_bias is not None:
        step = step + dt_bias.to(exact)
    if dt_softplus:
        step = F.softplus(step)
    step = step.clamp(*dt_limit)
    log_decay = precision.clamp_log(step * A.to(exact))
    if D is not None:
        D = (D if D.ndim == 2 else D.unsqueeze(1).expand(-1, width)).to(exact)
    blocks = plan_blocks(segments, Heads(heads, width, *B.shape[2:]), x.device)
    flat = (t.reshape(rows * tokens, *t.shape[2:]) for t in (x, B, C))
    out = ChunkedScan.apply(*flat, step, log_decay, D, blocks, x.dtype if z is None else exact)
    out = out.view(x.shape)
    return out if z is None else (out * F.silu(z.to(exact))).to(x.dtype)


def _check(
    x: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    segments: Segments,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
) -> None:
    if x.ndim != 4 or B.ndim != 4:
        raise ValueError(f"x must be [B, T, H, P] and B [B, T, G, N], got {tuple(x.shape)} and {tuple(B.shape)}")
    rows, tokens, heads, width = x.shape
    groups, state = B.shape[2:]
    if heads % groups:
        raise ValueError(f"{groups} groups do not divide {heads} heads")
    expected = {
        "dt": (dt, [(rows, tokens, heads)]),
        "A": (A, [(heads,)]),
        "B": (B, [(rows, tokens, groups, state)]),
        "C": (C, [(rows, tokens, groups, state)]),
        "D": (D, [(heads,), (heads, width)]),
        "z": (z, [tuple(x.shape)]),
        "dt_bias": (dt_bias, [(heads,)]),
    }
    for name, (tensor, shapes) in expected.items():
        if tensor is not None and tuple(tensor.shape) not in shapes:
            raise ValueError(f"{name} must be {' or '.join(map(str, shapes))}, got {tuple(tensor.shape)}")
    if segments.total != rows * tokens:
        raise ValueError(f"segments cover {segments.total} tokens, the input has {rows} x {tokens}")
