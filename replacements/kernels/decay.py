"""Cumulative log decays of chunks, kept precise next to decays that underflow."""

from __future__ import annotations

import torch

from .chunking import ChunkPlan
from .precision import Precision


def clamp_log(g: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Bound log decays from below where their exponential is zero anyway, so sums stay small and finite."""
    return g.to(precision.state).clamp(min=-110.0 if precision.state == torch.float32 else -760.0)


class ScalarDecay:
    """Decays of one number per token and head, for chunks that may hold several documents.

    Differences of cumulative sums lose the small decays beside a large one: next to -100, float32 keeps -0.001 to one
    digit in ten. The sums are therefore taken in float64 and kept as two float32 numbers, ``high + low``; a difference
    of the high parts is exact where the low ones matter.
    """

    def __init__(self, g: torch.Tensor, plan: ChunkPlan, precision: Precision) -> None:
        """``g``: log decays in chunks, ``[C, H, s]``, zero in padding, clamped."""
        self.plan, self.precision = plan, precision
        # A product with the mask: sums start again at every document, behind exact zeros.
        sums = g.to(precision.wide) @ plan.pairs.mT.to(precision.wide)
        self.high = sums.to(precision.state)
        self.low = None if precision.wide == precision.state else (sums - self.high).to(precision.state)

    def pairs(self) -> torch.Tensor:
        """``e^(c_i - c_j)`` for j at or before i in one document, else 0: ``[C, H, s, s]``."""
        out = self.high.unsqueeze(-1) - self.high.unsqueeze(-2)
        if self.low is not None:
            out.add_(self.low.unsqueeze(-1)).sub_(self.low.unsqueeze(-2))
        return out.clamp_(max=0).exp_().mul_(self.plan.pairs.unsqueeze(1))

    def enter(self) -> torch.Tensor:
        """``e^c`` of the chunks a state enters, zero in slots it does not reach: ``[E, H, s]``."""
        free = self.plan.free
        return self.high[free:].exp().mul_(self.plan.enters[free:].unsqueeze(1))

    def leave(self) -> torch.Tensor:
        """``e^(total - c)`` of the chunks links leave, zero in slots that do not leave: ``[E, H, s]``."""
        sources = self.plan.sources
        high = sources(self.high)
        out = high[..., -1:] - high
        if self.low is not None:
            low = sources(self.low)
            out.add_(low[..., -1:]).sub_(low)
        return out.clamp_(max=0).exp_().mul_(sources(self.plan.leaves).unsqueeze(1))

    def total(self) -> torch.Tensor:
        """``e^total`` of the chunks a state passes through: ``[F, H, 1]``."""
        return self.plan.before(self.high[self.plan.free :, :, -1:]).exp()

    def backward(self, grad: torch.Tensor) -> torch.Tensor:
        """Gradient by ``g`` from that by the cumulative sums, ``[C, H, s]``."""
        return grad @ self.plan.pairs.to(grad.dtype)
