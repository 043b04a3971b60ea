"""Gradients by log decays, from those by what they decay, without a difference of sums.

A log decay ``g_t`` acts on everything that is carried across slot t: from a slot j < t to a slot i >= t, from the
start of a chunk to a slot i >= t, from a slot j < t to its end. What is not carried across would cancel in a difference
of sums, but only to rounding; next to a fast decay hardly anything is carried across, and rounding is all that is left.
"""

from __future__ import annotations

import torch


def across_pairs(grad: torch.Tensor) -> torch.Tensor:
    """Sum over the pairs (i, j) with j < t <= i.

    Args:
        grad: By the log decay from j to i, ``[..., s, s]``; on and above the diagonal it is not read. Used up.

    Returns:
        ``[..., s]``.
    """
    out = grad.new_zeros(grad.shape[:-1])
    torch.sum(grad.tril_(-1).cumsum(-1).tril_(-1)[..., :-1], -2, out=out[..., 1:])
    return out


def from_start(grad: torch.Tensor) -> torch.Tensor:
    """Sum over the slots i >= t: ``[..., s]``, from gradients by the log decay from the start to i, ``[..., s]``."""
    return grad.flip(-1).cumsum(-1).flip(-1)


def to_end(grad: torch.Tensor) -> torch.Tensor:
    """Sum over the slots j < t: ``[..., s]``, from gradients by the log decay from j to the end, ``[..., s]``."""
    out = torch.zeros_like(grad)
    out[..., 1:] = grad[..., :-1].cumsum(-1)
    return out
