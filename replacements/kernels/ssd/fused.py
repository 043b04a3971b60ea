"""A Mamba-2 mixer after its input projection, over packed documents.

Source: Dao and Gu, "Transformers are SSMs", 2024, section 8; arguments and their meaning as in mamba_ssm's
``mamba_split_conv1d_scan_combined``, which this stands in for.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..causal_conv1d import causal_conv1d
from ..precision import Precision
from ..segments import Segments
from .op import ssd


def split_conv1d_ssd(
    zxbcdt: torch.Tensor,
    conv1d_weight: torch.Tensor,
    conv1d_bias: torch.Tensor | None,
    dt_bias: torch.Tensor,
    A: torch.Tensor,
    D: torch.Tensor,
    segments: Segments,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    activation: str | None = "silu",
    rmsnorm_weight: torch.Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: torch.Tensor | None = None,
    outproj_bias: torch.Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> torch.Tensor:
    """Split the projection, convolve, scan, gate and normalise, and project.

    Args:
        zxbcdt: Output of the input projection, ``[B, T, 2 M + 2 H P + 2 G N + H]``: M channels each of the gate and
            value of a plain gated MLP (M is 0 in most models), the gate z, the convolution's x, B and C, and the step
            size.
        conv1d_weight: ``[H P + 2 G N, W]``.
        conv1d_bias: ``[H P + 2 G N]`` or None.
        dt_bias: ``[H]``; softplus is always applied to the step size.
        A: ``[H]``, negative.
        D: ``[H]`` or ``[H, P]``.
        segments: Documents of the row(s), ``B * T`` tokens in all.
        dt_limit: Bounds of the step size.
        activation: Of the convolution: ``"silu"``, ``"swish"`` or None.
        rmsnorm_weight: ``[H P]``. With it, z gates in the RMS norm, whose statistics are per group; without it, in the
            scan.
        rmsnorm_eps: Of the norm.
        outproj_weight: ``[out, M + H P]``; None leaves the projection out.
        outproj_bias: ``[out]`` or None.
        headdim: P; needed where D is ``[H]``.
        ngroups: G.
        norm_before_gate: Normalise, then gate; otherwise gate, then normalise.

    Returns:
        ``[B, T, out]``, or ``[B, T, M + H P]`` without an output projection.

    Raises:
        ValueError: The sizes do not add up.
    """
    heads, width = D.shape if D.ndim == 2 else (len(D), headdim)
    if width is None:
        raise ValueError("headdim must be given where D is [H]")
    channels = zxbcdt.shape[-1]
    inner = heads * width
    state, rest = divmod(len(conv1d_weight) - inner, 2 * ngroups)
    mlp, odd = divmod(channels - inner - len(conv1d_weight) - heads, 2)
    if rest or odd or state < 1 or mlp < 0:
        raise ValueError(
            f"zxbcdt has {channels} channels and the convolution {len(conv1d_weight)}, which does not fit "
            f"{heads} heads of {width} in {ngroups} groups"
        )
    plain, z, xbc, dt = zxbcdt.split([2 * mlp, inner, len(conv1d_weight), heads], dim=-1)
    xbc = causal_conv1d(xbc.transpose(1, 2), conv1d_weight, conv1d_bias, segments, activation).transpose(1, 2)
    x, B, C = xbc.split([inner, ngroups * state, ngroups * state], dim=-1)
    y = ssd(
        x.unflatten(2, (heads, width)),
        dt,
        A,
        B.unflatten(2, (ngroups, state)),
        C.unflatten(2, (ngroups, state)),
        segments,
        D=D,
        z=z.unflatten(2, (heads, width)) if rmsnorm_weight is None else None,
        dt_bias=dt_bias,
        dt_softplus=True,
        dt_limit=dt_limit,
    ).flatten(2)
    if rmsnorm_weight is not None:
        y = gated_rms_norm(y, z, rmsnorm_weight, rmsnorm_eps, ngroups, norm_before_gate)
    if mlp:
        gate, value = plain.chunk(2, dim=-1)
        y = torch.cat([F.silu(gate) * value, y], dim=-1)
    return y if outproj_weight is None else F.linear(y.to(outproj_weight.dtype), outproj_weight, outproj_bias)


def gated_rms_norm(
    y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float, groups: int, norm_before_gate: bool
) -> torch.Tensor:
    """RMS norm over each of ``groups`` equal parts of the last dimension, gated by silu(z); dtype of ``y``."""
    exact = Precision.of(y).state
    gate = F.silu(z.to(exact))
    out = y.to(exact)
    if not norm_before_gate:
        out = out * gate
    parts = out.unflatten(-1, (groups, -1))
    parts = parts * torch.rsqrt(parts.square().mean(-1, keepdim=True) + eps)
    out = parts.flatten(-2) * weight.to(exact)
    if norm_before_gate:
        out = out * gate
    return out.to(y.dtype)
