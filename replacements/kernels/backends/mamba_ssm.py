"""mamba_ssm: boundaries as `seq_idx` in the Mamba-2 kernels, as `cu_seqlens` in the selective scan of some releases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..segments import Segments
from .backend import seq_idx_by_row

#: Tokens per chunk where the caller does not say.
_CHUNK = 256


def chunk_scan(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`mamba_chunk_scan_combined(x [B, T, H, P], dt, A, B, C, chunk_size, …, seq_idx=[B, T])`."""
    return kernel(
        **arguments,
        chunk_size=hints.get("chunk_size", _CHUNK),
        seq_idx=seq_idx_by_row(segments, arguments["x"].device),
    )


def split_conv1d_scan(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`mamba_split_conv1d_scan_combined(zxbcdt [B, T, …], conv1d_weight, …, chunk_size=…, seq_idx=[B, T])`."""
    return kernel(
        **arguments,
        chunk_size=hints.get("chunk_size", _CHUNK),
        seq_idx=seq_idx_by_row(segments, arguments["zxbcdt"].device),
    )


def selective_scan(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`selective_scan_fn(u [1, D, N], delta, A, B, C, …, cu_seqlens=[n + 1])`."""
    u = arguments["u"]
    rows, channels, tokens = u.shape
    by_row = ("u", "delta", "B", "C", "z")
    flat = {name: _one_row(x) if name in by_row else x for name, x in arguments.items()}
    out = kernel(**flat, cu_seqlens=segments.cu_seqlens(u.device))
    return out.view(channels, rows, tokens).transpose(0, 1)


def _one_row(x: torch.Tensor | None) -> torch.Tensor | None:
    """``[B, D, T]`` as ``[1, D, B * T]``."""
    return x if x is None or x.shape[0] == 1 else x.transpose(0, 1).reshape(1, x.shape[1], -1)
