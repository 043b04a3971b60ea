"""The chunked delta rule, whatever its decay.

Per document and head, with state ``S`` [K, V], the recurrence is

    S_t = Diag(a_t) S_(t-1) + b_t k_t (v_t - (Diag(a_t) S_(t-1))^T k_t)^T,    o_t = S_t^T q_t

(Yang et al., "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", 2024, eq. 7-11; with a
scalar decay "Gated Delta Networks", 2024; with one decay per channel "Kimi Linear", 2025). Inside a chunk, writing
``c`` for the cumulative log decay, it is

    A = tril(b_i k_i.k_j e^(c_i - c_j), -1),   P = tril(q_i.k_j e^(c_i - c_j))
    r = b v - (b e^c k) S,   u = (I + A)^-1 r         what each token adds, before and after the others' corrections
    o = (e^c q) S + P u
    S' = e^total S + (e^(total - c) k)^T u

What depends on the decay is computed by the caller: `Chunks`. Substituting ``u`` makes ``S'`` affine in ``S``, with a
[K, K] matrix that needs no state. So every large product is one batch over all chunks of all documents, and the scan
over chunks is a single ``baddbmm`` per step, forward (`run`) and backward (`differentiate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch

from ..chunking import ChunkPlan
from ..precision import Precision
from .triangular import unit_lower_inverse


@dataclass
class Chunks:
    """What a decay makes of the inputs. C chunks of s slots, E links, F links that pass on a state they received.

    Both directions use it up: a field is deleted when it is not needed any more, which bounds the peak of memory.

    Attributes:
        plan: Where the chunks lie.
        precision: Dtypes.
        system: ``A`` below the diagonal, ``[C, H, s, s]``; the other entries are not read.
        scores: ``P``, zero above the diagonal, ``[C, H, s, s]``.
        values: ``b v``, ``[C, H, s, V]``.
        queries: ``e^c q`` of the chunks a state enters, zero in slots it does not reach, ``[E, H, s, K]``.
        readers: ``b e^c k``, likewise.
        writers: ``e^(total - c) k`` of the chunk each link leaves, zero in slots that do not leave, ``[E, H, s, K]``.
        total: ``e^total`` of the chunks a state passes through, ``[F, H, K]`` or ``[F, H, 1]``.
    """

    plan: ChunkPlan
    precision: Precision
    system: torch.Tensor
    scores: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor
    readers: torch.Tensor
    writers: torch.Tensor
    total: torch.Tensor


@dataclass
class Gradients:
    """Gradients of a loss by the terms of `Chunks`, ``system`` and ``readers`` with the sign turned.

    ``values`` is that by ``r``, and ``total`` that by the logarithm of its field.
    """

    system: torch.Tensor
    scores: torch.Tensor
    values: torch.Tensor
    queries: torch.Tensor
    readers: torch.Tensor
    writers: torch.Tensor
    total: torch.Tensor


@dataclass
class _Scanned:
    """Intermediates both directions need."""

    inverse: torch.Tensor  # (I + A)^-1, [C, H, s, s]
    carry: torch.Tensor  # writers^T (I + A)^-1 of every link, [E, H, K, s]
    passes: torch.Tensor  # the affine map's matrix of links that pass a state on, [F, H, K, K]
    states: torch.Tensor  # the state on every link, [E, H, K, V]
    added: torch.Tensor  # u, [C, H, s, V]


def run(chunks: Chunks) -> torch.Tensor:
    """The outputs ``[C, H, s, V]``."""
    scanned = _scan(chunks)
    del scanned.inverse, scanned.carry, scanned.passes
    out = chunks.precision.matmul(chunks.scores, scanned.added)
    chunks.precision.add_matmul(out[chunks.plan.free :], chunks.queries, scanned.states)
    return out


def _scan(chunks: Chunks) -> _Scanned:
    plan, mm, values = chunks.plan, chunks.precision.matmul, chunks.values
    operand = chunks.precision.operand
    inverse = operand(unit_lower_inverse(chunks.system))
    del chunks.system, chunks.values
    carry = operand(mm(chunks.writers.mT, plan.sources(inverse)))
    del chunks.writers
    states = mm(carry, plan.sources(values))
    passes = mm(carry[plan.links - plan.passing :], plan.before(chunks.readers)).neg_()
    passes.diagonal(dim1=-2, dim2=-1).add_(chunks.total)
    _advance(plan, passes, states)
    chunks.precision.add_matmul(values[plan.free :], chunks.readers, states, alpha=-1)  # b v becomes r
    return _Scanned(inverse, carry, passes, states, operand(mm(inverse, values)))


def _steps(plan: ChunkPlan, heads: int) -> list[tuple[slice, slice, slice]]:
    """Per scan step: its links, those they continue, and their maps, as slices over links and heads."""
    first, slices = plan.links - plan.passing, []
    for (before, _), (begin, count) in pairwise(plan.steps):
        starts = (begin, before, begin - first)
        slices.append(tuple(slice(start * heads, (start + count) * heads) for start in starts))
    return slices


def _advance(plan: ChunkPlan, passes: torch.Tensor, states: torch.Tensor) -> None:
    """Turn what every link adds to its document's state into the state, in place, one step after another."""
    states, passes, heads = states.flatten(0, 1), passes.flatten(0, 1), states.shape[1]
    for now, before, maps in _steps(plan, heads):
        states[now].baddbmm_(passes[maps], states[before])


def _retreat(plan: ChunkPlan, passes: torch.Tensor, grads: torch.Tensor) -> None:
    """The adjoint of `_advance`: add to each link's gradient what flows back from the links after it."""
    grads, passes, heads = grads.flatten(0, 1), passes.flatten(0, 1).mT, grads.shape[1]
    for now, before, maps in reversed(_steps(plan, heads)):
        grads[before].baddbmm_(passes[maps], grads[now])


def differentiate(chunks: Chunks, grad: torch.Tensor) -> Gradients:
    """Gradients from that of the outputs, ``[C, H, s, V]``. Everything `run` computed is computed again."""
    plan, precision, mm = chunks.plan, chunks.precision, chunks.precision.matmul
    entered, passed = slice(plan.free, None), slice(plan.links - plan.passing, None)
    scanned = _scan(chunks)
    states = scanned.states
    grad = precision.operand(grad)
    dvalues = mm(scanned.inverse.mT, mm(chunks.scores.mT, grad))  # what flows through the states is added below
    del scanned.inverse, chunks.scores
    dstates = mm(chunks.queries.mT, grad[entered])
    precision.add_matmul(dstates, chunks.readers.mT, dvalues[entered], alpha=-1)
    del chunks.queries, chunks.readers
    _retreat(plan, scanned.passes, dstates)
    plan.add_to_sources(dvalues, mm(scanned.carry.mT, dstates))
    del scanned.carry, scanned.passes
    total = (plan.before(states) * dstates[passed]).sum(-1).mul_(chunks.total)
    states, dstates, reached = (precision.operand(x) for x in (states, dstates, dvalues))
    return Gradients(
        system=mm(reached, scanned.added.mT),
        scores=mm(grad, scanned.added.mT),
        values=dvalues,
        queries=mm(grad[entered], states.mT),
        readers=mm(reached[entered], states.mT),
        writers=mm(plan.sources(scanned.added), dstates.mT),
        total=total,
    )
