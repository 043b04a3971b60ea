"""The chunked delta rule, whatever its decay.

Per document and head, with state ``S`` [K, V], the recurrence is

    S_t = Diag(a_t) S_(t-1) + b_t k_t (v_t - (Diag(a_t) S_(t-1))^T k_t)^T,    o_t = S_t^T q_t

(Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, eq. 7-11; with a
scalar decay "Gated Delta Networks", 2024; with one decay per channel "Kimi Linear", 2025). Inside a chunk, writing
``c`` for the cumulative log decay, it is

    T = (I + tril(b k_i.k_j e^(c_i - c_j), -1))^-1
    u = T b (v - (e^c k) S)                 the corrected values
    o = (e^c q) S + tril(q_i.k_j e^(c_i - c_j)) u
    S' = e^total S + (e^(total - c) k)^T u

What depends on the decay is computed by the caller: `Chunks`. Substituting ``u`` makes ``S'`` affine in ``S``, with a
[K, K] matrix that needs no state. So every large product is one batch over all chunks of all documents, and the scan
over chunks is a single ``baddbmm`` per step, forward (`run`) and backward (`differentiate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from .chunking import ChunkPlan
from .precision import Precision
from .triangular import unit_lower_inverse


@dataclass
class Chunks:
    """What a decay makes of the inputs. C chunks of s slots, E links, F links that pass on a state they received.

    Attributes:
        plan: Where the chunks lie.
        precision: Dtypes.
        system: ``b_i k_i.k_j e^(c_i - c_j)`` below the diagonal, ``[C, H, s, s]``; its other entries are not read.
        scores: ``q_i.k_j e^(c_i - c_j)`` on and below the diagonal, zero elsewhere, ``[C, H, s, s]``.
        v: ``[C, H, s, V]``.
        beta: ``[C, H, s]``, zero in padding.
        q_in: ``e^c q`` of the chunks a state enters, zero in slots it does not reach, ``[E, H, s, K]``.
        k_in: ``e^c k``, likewise.
        k_out: ``e^(total - c) k`` of the chunk each link leaves, zero in slots that do not leave, ``[E, H, s, K]``.
        total: ``e^total`` of the chunks a state passes through, ``[F, H, K]`` or ``[F, H, 1]``.
    """

    plan: ChunkPlan
    precision: Precision
    system: torch.Tensor
    scores: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    q_in: torch.Tensor
    k_in: torch.Tensor
    k_out: torch.Tensor
    total: torch.Tensor


@dataclass
class Gradients:
    """Gradients of a loss by the fields of `Chunks`; ``total`` by its logarithm."""

    system: torch.Tensor
    scores: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor
    q_in: torch.Tensor
    k_in: torch.Tensor
    k_out: torch.Tensor
    total: torch.Tensor


@dataclass
class _Scanned:
    """Intermediates both directions need."""

    inverse: torch.Tensor  # T, [C, H, s, s]
    carry: torch.Tensor  # k_out^T T of every link, [E, H, K, s]
    passes: torch.Tensor  # the affine map's matrix of links that pass a state on, [F, H, K, K]
    states: torch.Tensor  # the state on every link, [E, H, K, V]
    residual: torch.Tensor  # v - k_in S, [C, H, s, V]
    values: torch.Tensor  # u, [C, H, s, V]


def run(chunks: Chunks) -> torch.Tensor:
    """The outputs ``[C, H, s, V]``."""
    scanned = _scan(chunks)
    out = chunks.precision.matmul(chunks.scores, scanned.values)
    chunks.precision.add_matmul(out[chunks.plan.free :], chunks.q_in, scanned.states)
    return out


def _scan(chunks: Chunks) -> _Scanned:
    plan, mm = chunks.plan, chunks.precision.matmul
    inverse = unit_lower_inverse(chunks.system)
    beta = chunks.beta.unsqueeze(-1)
    carry = mm(chunks.k_out.mT, plan.sources(inverse))
    states = mm(carry, plan.sources(chunks.v * beta))
    weight = plan.before(chunks.beta[plan.free :]).neg().unsqueeze(-2)
    passes = mm(carry[plan.links - plan.passing :] * weight, plan.before(chunks.k_in))
    passes.diagonal(dim1=-2, dim2=-1).add_(chunks.total)
    _advance(plan, passes, states)
    residual = chunks.v.clone()
    chunks.precision.add_matmul(residual[plan.free :], chunks.k_in, states, alpha=-1)
    return _Scanned(inverse, carry, passes, states, residual, mm(inverse, residual * beta))


def _advance(plan: ChunkPlan, passes: torch.Tensor, states: torch.Tensor) -> None:
    """Turn what every link adds to its document's state into the state, in place, one step after another."""
    heads, first = states.shape[1], plan.links - plan.passing
    flat, maps = states.flatten(0, 1), passes.flatten(0, 1)
    for (before, _), (begin, count) in pairwise(plan.steps):
        now, was = slice(begin * heads, (begin + count) * heads), slice(before * heads, (before + count) * heads)
        flat[now].baddbmm_(maps[(begin - first) * heads : (begin - first + count) * heads], flat[was])


def _retreat(plan: ChunkPlan, passes: torch.Tensor, grads: torch.Tensor) -> None:
    """The adjoint of `_advance`: add to each link's gradient what flows back from the links after it."""
    heads, first = grads.shape[1], plan.links - plan.passing
    flat, maps = grads.flatten(0, 1), passes.flatten(0, 1).mT
    for (before, _), (begin, count) in reversed(list(pairwise(plan.steps))):
        now, was = slice(begin * heads, (begin + count) * heads), slice(before * heads, (before + count) * heads)
        flat[was].baddbmm_(maps[(begin - first) * heads : (begin - first + count) * heads], flat[now])


def differentiate(chunks: Chunks, grad: torch.Tensor) -> Gradients:
    """Gradients from that of the outputs, ``[C, H, s, V]``. Everything `run` computed is computed again."""
    plan, precision, mm = chunks.plan, chunks.precision, chunks.precision.matmul
    scanned = _scan(chunks)
    beta = chunks.beta.unsqueeze(-1)
    solved = mm(scanned.inverse.mT, mm(chunks.scores.mT, grad))  # gradient by b (v - k_in S), states aside
    states, entered, passed = scanned.states, slice(plan.free, None), slice(plan.links - plan.passing, None)
    state_grads = mm(chunks.q_in.mT, grad[entered])
    precision.add_matmul(state_grads, chunks.k_in.mT, solved[entered] * beta[entered], alpha=-1)
    _retreat(plan, scanned.passes, state_grads)
    plan.add_to_sources(solved, mm(scanned.carry.mT, state_grads))
    dbeta = (solved * scanned.residual).sum(-1)
    dsystem = mm(solved.neg(), scanned.values.mT)
    dscores = mm(grad, scanned.values.mT)
    dv = solved.mul_(beta)
    return Gradients(
        system=dsystem,
        scores=dscores,
        v=dv,
        beta=dbeta,
        q_in=mm(grad[entered], states.mT),
        k_in=mm(dv[entered].neg(), states.mT),
        k_out=mm(plan.sources(scanned.values), state_grads.mT),
        total=(plan.before(states) * state_grads[passed]).sum(-1).mul_(chunks.total),
    )
