"""Checks of what callers pass."""

from __future__ import annotations

from ..segments import Segments


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
