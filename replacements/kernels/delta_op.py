"""A delta rule over a packed row as one differentiable operation; its backward recomputes the forward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from . import delta
from .channel_decay import ChannelDecay
from .chunking import ChunkPlan
from .cost import delta_rule_plan
from .decay import ScalarDecay, clamp_log
from .inputs import check_delta_rule, without_autocast
from .l2norm import l2norm, l2norm_backward
from .precision import Precision
from .segments import Segments


@dataclass(frozen=True)
class _Options:
    segments: Segments
    scale: float
    qk_l2norm: bool
    decay: type[ScalarDecay] | type[ChannelDecay]


def delta_rule(q, k, v, g, beta, segments, scale, qk_l2norm, decay) -> torch.Tensor:
    """Check the arguments and run the delta rule whose decay is ``decay``; see the two public operations."""
    check_delta_rule(q, k, v, g, beta, segments, channels=decay is ChannelDecay)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _DeltaRule.apply(q, k, v, g, beta, _Options(segments, scale, qk_l2norm, decay))


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx, q, k, v, g, beta, options):
        ctx.save_for_backward(q, k, v, g, beta)
        ctx.options = options
        parts = _prepare(q, k, v, g, beta, options)
        plan, chunks = parts.plan, parts.chunks
        del parts
        return plan.scatter(delta.run(chunks)).to(q.dtype).view(*q.shape[:2], *v.shape[2:])

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad):
        inputs, options = ctx.saved_tensors, ctx.options
        parts = _prepare(*inputs, options)
        grads = delta.differentiate(parts.chunks, parts.plan.gather(_row(grad)))
        dq, dk, dv, dg, dbeta = _backward(parts, grads, _row(inputs[2]), _row(inputs[4]))
        dq, dk = _ungroup(dq, inputs[0]).mul_(options.scale), _ungroup(dk, inputs[1])
        if options.qk_l2norm:
            dq, dk = l2norm_backward(dq, inputs[0]), l2norm_backward(dk, inputs[1])
        results = zip((dq, dk, dv, dg, dbeta), inputs, strict=True)
        return *(d.to(x.dtype).view(x.shape) for d, x in results), None


@dataclass
class _Parts:
    """Inputs in chunks, ``[C, H, s, ...]``, and what their decays make of them."""

    plan: ChunkPlan
    precision: Precision
    decay: Any
    q: torch.Tensor
    k: torch.Tensor
    bk: torch.Tensor
    beta: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    chunks: delta.Chunks


def _prepare(q, k, v, g, beta, options: _Options) -> _Parts:
    precision, heads = Precision.of(q), v.shape[2]
    operand = precision.operand
    channels = g.dim() == 4
    plan = delta_rule_plan(options.segments, q.device, q.shape[-1], v.shape[-1], heads, channels)
    q, k, g, beta = (_row(x, precision.state) for x in (q, k, g, beta))
    q, k = (l2norm(q, options.scale), l2norm(k)) if options.qk_l2norm else (q * options.scale, k)
    q, k, v = plan.gather(operand(q), heads), plan.gather(operand(k), heads), plan.gather(_row(v))
    valid = plan.valid.unsqueeze(1)
    g, beta = plan.gather(clamp_log(g, precision)), plan.gather(beta).mul_(valid).unsqueeze(-1)
    decay = options.decay(g.mul_(valid.unsqueeze(-1) if channels else valid), plan, precision)
    bk = operand(k * beta)
    scores, system = decay.products(q, bk, k)
    enter, leave, total = decay.edges()
    chunks = delta.Chunks(
        plan=plan,
        precision=precision,
        system=system,
        scores=operand(scores),
        values=v * beta,
        queries=operand(q[plan.free :] * enter),
        readers=operand(bk[plan.free :] * enter),
        writers=operand(plan.sources(k) * leave),
        total=total,
    )
    return _Parts(plan, precision, decay, q, k, bk, beta, enter, leave, chunks)


def _backward(parts: _Parts, grads: delta.Gradients, v: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients by q (scaled), k, v, g and beta, token by token: ``[N, H, ...]``.

    A cumulative decay ``c_i`` multiplies ``q_i`` and ``b_i k_i`` where they read and divides ``k_i`` where it is
    written, so its gradient is the sum of these times their gradients, with that sign: no sum over pairs is needed.

    Args:
        parts: The inputs in chunks.
        grads: Gradients by their terms.
        v: Values ``[N, H, V]``.
        beta: Step sizes ``[N, H]``.
    """
    plan, q, k = parts.plan, parts.q, parts.k
    grads.system.diagonal(dim1=-2, dim2=-1).zero_()
    dq, dbk, dk = parts.decay.products_backward(q, parts.bk, k, grads.scores, grads.system)
    dq[plan.free :].addcmul_(grads.queries, parts.enter)
    dbk[plan.free :].addcmul_(grads.readers, parts.enter)
    writers = grads.writers.mul_(parts.leave)
    plan.add_to_sources(dk, writers)
    last = writers.mul_(plan.sources(k)).sum(-2)
    last[plan.links - plan.passing :] += grads.total
    reads = (k * dbk).neg_()  # gradients by bk come with the sign turned
    dbeta = plan.scatter(reads.sum(-1))
    dg = parts.decay.backward(reads.mul_(parts.beta).addcmul_(q, dq).addcmul_(k, dk, value=-1), last)
    dk.addcmul_(dbk, parts.beta, value=-1)
    dvalues = plan.scatter(grads.values)
    dbeta += (dvalues * v).sum(-1)
    return plan.scatter(dq), plan.scatter(dk), dvalues.mul_(beta.unsqueeze(-1)), plan.scatter(dg), dbeta


def _row(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """``[B, T, ...]`` as one row ``[B T, ...]``."""
    return x.reshape(-1, *x.shape[2:]).to(dtype or x.dtype)


def _ungroup(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum the gradients ``[N, H, K]`` of value heads that share a query or key head of ``like``."""
    held = like.shape[2]
    return grad if grad.shape[1] == held else grad.unflatten(1, (held, -1)).sum(2)
