"""flash-linear-attention: boundaries as `cu_seqlens`, for which it wants one row of all tokens.

Its kernels plan their chunks on the host. Given the offsets there too, they need not wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..segments import Segments
from .backend import accepted, one_row


def causal_conv1d(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`causal_conv1d(x [1, N, D], weight [D, W], bias, activation=…, cu_seqlens=[n + 1]) -> (y, state)`."""
    x = arguments["x"]
    result = kernel(
        x=one_row(x.transpose(1, 2)),
        weight=arguments["weight"].contiguous(),
        bias=arguments["bias"],
        activation=arguments["activation"],
        **_boundaries(kernel, segments, x.device),
    )
    y = result[0] if isinstance(result, tuple) else result
    return y.view(x.shape[0], x.shape[2], x.shape[1]).transpose(1, 2)


def delta_rule(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`chunk_…(q [1, N, Hk, K], k, v [1, N, H, V], g, beta, scale=…, cu_seqlens=[n + 1]) -> (out, state)`."""
    v = arguments["v"]
    out, _ = kernel(
        **{name: one_row(arguments[name]) for name in ("q", "k", "v", "g", "beta")},
        scale=arguments["scale"],
        use_qk_l2norm_in_kernel=arguments["qk_l2norm"],
        output_final_state=False,
        **_boundaries(kernel, segments, v.device),
    )
    return out if out.shape == v.shape else out.view(v.shape)  # a view of every layer is a node of the graph


def _boundaries(kernel: Callable[..., Any], segments: Segments, device: torch.device) -> dict[str, torch.Tensor]:
    on_host = accepted(kernel, cu_seqlens_cpu=segments.cu_seqlens("cpu"))
    return {"cu_seqlens": segments.cu_seqlens(device), **on_host}
