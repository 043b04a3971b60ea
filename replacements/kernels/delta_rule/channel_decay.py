"""Decays of one number per token, head and key channel inside chunks, without overflow.

The decayed products ``sum_d q_id k_jd e^(c_id - c_jd)`` cannot be factored as ``(q e^c)(k e^-c)``: ``e^-c`` overflows.
But with any reference between j and i, both ``c_i - c_ref`` and ``c_ref - c_j`` are at most 0. So the pairs of a chunk
are split by the smallest aligned block that holds both: at level b, i is in the second and j in the first half of a
block of 2 b, and the reference is the middle. Each level is one batched product on decays summed within halves, and
the sums of a level follow from those of the level below: no difference of cumulative sums is ever taken.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..chunking import ChunkPlan
from ..precision import Precision


class ChannelDecay:
    """What log decays ``g`` do to queries, keys and states; see `ScalarDecay` for the methods."""

    def __init__(self, g: torch.Tensor, plan: ChunkPlan, precision: Precision) -> None:
        """``g``: log decays in chunks, ``[C, H, s, K]``, clamped."""
        self.plan, self.precision, self.g = plan, precision, g

    def _levels(self) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Each level's half b, decays from the middle to the rows and from the columns to the middle.

        They have the shape ``[C, H, s / 2b, b, K]``.
        """
        before, after = self.g.clone(), torch.zeros_like(self.g)
        half = 1
        while half < self.plan.size:
            upto, behind = _halves(before, half), _halves(after, half)
            yield half, upto[..., 1, :, :].exp(), behind[..., 0, :, :].exp()
            first, second = upto[..., 0, -1:, :].clone(), upto[..., 1, -1:, :].clone()
            upto[..., 1, :, :] += first
            behind[..., 0, :, :] += second
            half *= 2

    def products(self, q: torch.Tensor, bk: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``q_i.k_j`` and ``b_i k_i.k_j``, each decayed from j to i: ``[C, H, s, s]``, zero where i does not see j."""
        scores, system = (self.g.new_zeros(*q.shape[:3], self.plan.size) for _ in range(2))
        scores.diagonal(dim1=-2, dim2=-1).copy_((q * k).sum(-1))
        for half, rows, columns in self._levels():
            reading = torch.cat([_second(q, half) * rows, _second(bk, half) * rows], dim=-2)
            block = self.precision.matmul(reading, (_first(k, half) * columns).mT)
            _corner(scores, half).copy_(block[..., :half, :])
            _corner(system, half).copy_(block[..., half:, :])
        mask = self.plan.pairs.unsqueeze(1)
        return scores.mul_(mask), system.mul_(mask)

    def products_backward(self, q, bk, k, dscores, dsystem) -> tuple[torch.Tensor, ...]:
        """Gradients of ``scores - system``, by q, by bk, by k, and by ``g`` inside chunks. Uses its gradients up."""
        mm, mask = self.precision.matmul, self.plan.pairs.unsqueeze(1)
        dscores, dsystem = dscores.mul_(mask), dsystem.mul_(mask)
        diagonal = dscores.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        dq, dbk, dk, dg = diagonal * k, torch.zeros_like(self.g), diagonal * q, torch.zeros_like(self.g)
        for half, rows, columns in self._levels():
            grad = torch.cat([_corner(dscores, half), _corner(dsystem, half)], dim=-2)
            reading = torch.cat([_second(q, half) * rows, _second(bk, half) * rows.neg()], dim=-2)
            written = mm(grad.mT, reading).mul_(columns)
            _first(dk, half).add_(written)
            _first(dg, half).add_(_to_end(written.mul_(_first(k, half))))
            read, read_bk = mm(grad, _first(k, half) * columns).split(half, dim=-2)
            _second(dq, half).add_(read.mul_(rows))
            _second(dbk, half).add_(read_bk.mul_(rows))
            read.mul_(_second(q, half)).addcmul_(read_bk, _second(bk, half), value=-1)
            _second(dg, half).add_(_from_start(read))
        return dq, dbk, dk, dg

    def edges(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `ScalarDecay.edges`, per channel: ``[E, H, s, K]`` twice and ``[F, H, K]``."""
        plan, free, before, after = self.plan, self.plan.free, self.g.cumsum(-2), _behind(self.g)
        enter = before[free:].exp().mul_(plan.enters[free:, None, :, None])
        leave = plan.sources(after).exp().mul_(plan.sources(plan.leaves)[:, None, :, None])
        return enter, leave, plan.before(before[free:, :, -1]).exp()

    def backward(self, within, entered, left, through) -> torch.Tensor:
        """As `ScalarDecay.backward`, per channel: ``[C, H, s, K]``."""
        left = _to_end(left)
        left[self.plan.links - self.plan.passing :] += through.unsqueeze(-2)
        within[self.plan.free :] += _from_start(entered)
        self.plan.add_to_sources(within, left)
        return within


def _from_start(grad: torch.Tensor) -> torch.Tensor:
    """`crossing.from_start` of ``[..., s, K]``; products with a triangle are quicker than sums along that axis."""
    return _ones(grad).triu_() @ grad


def _to_end(grad: torch.Tensor) -> torch.Tensor:
    """`crossing.to_end` of ``[..., s, K]``."""
    return _ones(grad).tril_(-1) @ grad


def _ones(grad: torch.Tensor) -> torch.Tensor:
    return grad.new_ones(grad.shape[-2], grad.shape[-2])


def _behind(g: torch.Tensor) -> torch.Tensor:
    """Sums of the log decays behind each slot of a chunk, without a difference of sums."""
    out = torch.zeros_like(g)
    out[..., :-1, :] = g[..., 1:, :].flip(-2).cumsum(-2).flip(-2)
    return out


def _halves(x: torch.Tensor, half: int) -> torch.Tensor:
    """View ``[C, H, s, K]`` as ``[C, H, s / 2b, 2, b, K]``."""
    return x.view(*x.shape[:2], -1, 2, half, x.shape[-1])


def _first(x: torch.Tensor, half: int) -> torch.Tensor:
    return _halves(x, half)[..., 0, :, :]


def _second(x: torch.Tensor, half: int) -> torch.Tensor:
    return _halves(x, half)[..., 1, :, :]


def _corner(x: torch.Tensor, half: int) -> torch.Tensor:
    """The lower left quarters of the diagonal blocks of 2 b, ``[C, H, s / 2b, b, b]``, of ``[C, H, s, s]``."""
    blocks = x.shape[-1] // (2 * half)
    grid = x.view(*x.shape[:2], blocks, 2 * half, blocks, 2 * half).diagonal(dim1=2, dim2=4)
    return grid.movedim(-1, 2)[..., half:, :half]
