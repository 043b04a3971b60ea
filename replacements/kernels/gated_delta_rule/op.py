"""The gated delta rule over a packed row."""

from __future__ import annotations

import torch

from ..delta_rule import ScalarDecay, delta_rule
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
    """Gated delta rule of each document alone (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024, eq. 10).

    Per head, from a zero state ``S`` at every document's start:
    ``S = e^g S;  S += beta k (v - S^T k)^T;  o = scale S^T q``.

    Differentiable once, by every tensor. The backward recomputes what is inside a chunk: only the arguments are kept.

    Args:
        q: Queries ``[B, T, Hk, K]``, any strides.
        k: Keys ``[B, T, Hk, K]``; each head serves ``H / Hk`` consecutive value heads.
        v: Values ``[B, T, H, V]``.
        g: Log decays ``[B, T, H]``, at most 0; ``-inf`` forgets everything.
        beta: Step sizes ``[B, T, H]``.
        segments: Documents of the flattened row of ``B * T`` tokens.
        scale: Factor of the queries, ``K ** -0.5`` if None.
        qk_l2norm: Normalise queries and keys over K first (eps 1e-6 inside the root).

    Returns:
        ``[B, T, H, V]`` in the dtype of ``q``; see `Precision` for the dtypes inside.

    Raises:
        ValueError: Shapes disagree with each other or with ``segments``.
    """
    return delta_rule(q, k, v, g, beta, segments, scale, qk_l2norm, ScalarDecay)
