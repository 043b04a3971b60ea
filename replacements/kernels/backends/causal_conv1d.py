"""The causal-conv1d package (Dao): one kernel, boundaries as `seq_idx`, channels adjacent in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..segments import Segments
from .backend import seq_idx_by_row

#: The kernel loads this many channels at once, so strides have to be multiples of it.
_VECTOR = 8


def causal_conv1d_fn(
    kernel: Callable[..., Any], arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]
) -> torch.Tensor:
    """`causal_conv1d_fn(x [B, D, T], weight [D, W], bias, seq_idx=[B, T], activation=…)`."""
    x, weight, bias = arguments["x"], arguments["weight"], arguments["bias"]
    return kernel(
        _channels_adjacent(x),
        weight.contiguous(),
        None if bias is None else bias.contiguous(),
        seq_idx=seq_idx_by_row(segments, x.device),
        activation=arguments["activation"],
    )


def _channels_adjacent(x: torch.Tensor) -> torch.Tensor:
    fits = x.stride(1) == 1 and x.stride(0) % _VECTOR == 0 and x.stride(2) % _VECTOR == 0
    return x if fits else x.transpose(1, 2).contiguous().transpose(1, 2)
