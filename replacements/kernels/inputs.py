"""Checks of what callers pass, and the state of autocast inside an operation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from .segments import Segments


def check_delta_rule(q, k, v, g, beta, segments: Segments, channels: bool) -> None:
    """Raise a ValueError unless the shapes of a delta rule fit; ``channels``: one decay per key channel."""
    if q.dim() != 4 or v.dim() != 4 or q.shape != k.shape or q.shape[:2] != v.shape[:2]:
        raise ValueError(
            "expected q and k [B, T, Hk, K] and v [B, T, H, V], got "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if v.shape[2] % q.shape[2]:
        raise ValueError(f"{v.shape[2]} value heads cannot share {q.shape[2]} query heads evenly")
    wanted = v.shape[:3] + (q.shape[3:] if channels else ())
    if g.shape != wanted or beta.shape != v.shape[:3]:
        raise ValueError(
            f"expected g {tuple(wanted)} and beta {tuple(v.shape[:3])}, got {tuple(g.shape)} and {tuple(beta.shape)}"
        )
    if v.shape[0] * v.shape[1] != segments.total:
        raise ValueError(f"the tensors hold {v.shape[0] * v.shape[1]} tokens but the documents {segments.total}")


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a forward or backward with autocast off: the operations choose their own dtypes."""

    @functools.wraps(function)
    def run(ctx: Any, *args: Any) -> Any:
        kind = next(a.device.type for a in args if isinstance(a, torch.Tensor))
        with torch.autocast(kind, enabled=False):
            return function(ctx, *args)

    return run
