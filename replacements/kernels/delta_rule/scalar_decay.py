"""Decays of one number per token and head inside chunks, kept precise next to decays that underflow."""

from __future__ import annotations

import torch

from ..chunking import ChunkPlan
from ..crossing import across_pairs, from_start, to_end
from ..precision import Precision


class ScalarDecay:
    """What log decays ``g`` do to queries, keys and states. ``c`` is their cumulative sum within a document.

    Differences of cumulative sums lose the small decays beside a large one: past -100, float32 keeps of -0.001 three
    digits. The sums are therefore taken in float64 and kept as two float32 numbers, ``high + low``.
    """

    def __init__(self, g: torch.Tensor, plan: ChunkPlan, precision: Precision) -> None:
        """``g``: log decays in chunks, ``[C, H, s]``, clamped."""
        self.plan, self.precision = plan, precision
        wide = g.to(precision.wide)
        # A product with the mask: sums start again at every document, and exact zeros hide the others.
        sums = wide @ plan.pairs.mT.to(precision.wide) if plan.mixed else wide.cumsum(-1)
        self.high = sums.to(precision.state)
        self.low = None if precision.wide == precision.state else (sums - self.high).to(precision.state)
        self.pairs = self._differences(self.high, self.low)

    def _differences(self, high: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
        """``e^(c_i - c_j)`` for j at or before i in one document, else 0: ``[C, H, s, s]``."""
        out = high.unsqueeze(-1) - high.unsqueeze(-2)
        if low is not None:
            out.add_(low.unsqueeze(-1)).sub_(low.unsqueeze(-2))
        return out.add_(self.plan.bias(out.dtype)).exp_()  # masked before exp: above the diagonal it would overflow

    def products(self, q: torch.Tensor, bk: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``q_i.k_j`` and ``b_i k_i.k_j``, each decayed from j to i: ``[C, H, s, s]``, zero where i does not see j."""
        mm = self.precision.matmul
        self.decayed = mm(q, k.mT).mul_(self.pairs), mm(bk, k.mT).mul_(self.pairs)
        return self.decayed

    def products_backward(self, q, bk, k, dscores, dsystem) -> tuple[torch.Tensor, ...]:
        """Gradients of ``scores - system``, by q, by bk, by k, and by ``g`` inside chunks. Uses its gradients up."""
        mm, operand = self.precision.matmul, self.precision.operand
        scores, system = self.decayed
        del self.decayed
        dg = across_pairs((dscores * scores).addcmul_(dsystem, system, value=-1))
        dscores, dsystem = operand(dscores.mul_(self.pairs)), operand(dsystem.mul_(self.pairs))
        dk = self.precision.add_matmul(mm(dscores.mT, q), dsystem.mT, bk, alpha=-1)
        return mm(dscores, k), mm(dsystem, k), dk, dg

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Decays between a slot and the edges of its chunk.

        Returns:
            ``e^c`` of the chunks a state enters, zero in slots it does not reach, ``[E, H, s, 1]``;
            ``e^(total - c)`` of the chunks links leave, zero in slots that do not leave, ``[E, H, s, 1]``;
            ``e^total`` of the chunks a state passes through, ``[F, H, 1]``.
        """
        plan, free = self.plan, self.plan.free
        enter = self.high[free:].exp().mul_(plan.enters[free:].unsqueeze(1))
        high = plan.sources(self.high)
        leave = high[..., -1:] - high
        if self.low is not None:
            low = plan.sources(self.low)
            leave.add_(low[..., -1:]).sub_(low)
        mask = plan.sources(plan.leaves).unsqueeze(1)
        leave = leave.mul_(mask).exp_().mul_(mask)
        return enter.unsqueeze(-1), leave.unsqueeze(-1), plan.before(self.high[free:, :, -1:]).exp()

    def backward(self, within, entered, left, through) -> torch.Tensor:
        """Gradient by ``g``, ``[C, H, s]``.

        Args:
            within: From inside the chunks, as `products_backward` returns it; used up.
            entered: By the logarithm of the first of `edges`, per key channel, ``[E, H, s, K]``.
            left: The same of the second.
            through: The same of the third, ``[F, H, K]``.
        """
        left = to_end(left.sum(-1))
        left[self.plan.links - self.plan.passing :] += through.sum(-1, keepdim=True)
        within[self.plan.free :] += from_start(entered.sum(-1))
        self.plan.add_to_sources(within, left)
        return within
