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
        return parts.plan.scatter(delta.run(parts.chunks)).to(q.dtype).view(*q.shape[:2], *v.shape[2:])

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad):
        inputs, options = ctx.saved_tensors, ctx.options
        parts = _prepare(*inputs, options)
        grad = parts.plan.gather(_row(grad, parts.precision))
        grads = _backward(parts, delta.differentiate(parts.chunks, grad))
        dq, dk, dv, dg, dbeta = (parts.plan.scatter(x) for x in grads)
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
    v: torch.Tensor
    bk: torch.Tensor
    beta: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    chunks: delta.Chunks


def _prepare(q, k, v, g, beta, options: _Options) -> _Parts:
    precision, heads = Precision.of(q), v.shape[2]
    channels = g.dim() == 4
    plan = delta_rule_plan(options.segments, q.device, q.shape[-1], v.shape[-1], heads, channels)
    q, k, v, g, beta = (_row(x, precision) for x in (q, k, v, g, beta))
    q, k = (l2norm(q, options.scale), l2norm(k)) if options.qk_l2norm else (q * options.scale, k)
    q, k, v = plan.gather(q, heads), plan.gather(k, heads), plan.gather(v)
    valid = plan.valid.unsqueeze(1)
    g, beta = plan.gather(clamp_log(g, precision)), plan.gather(beta).mul_(valid).unsqueeze(-1)
    decay = options.decay(g.mul_(valid.unsqueeze(-1) if channels else valid), plan, precision)
    bk = k * beta
    scores, system = decay.products(q, bk, k)
    enter, leave = decay.enter(), decay.leave()
    chunks = delta.Chunks(
        plan=plan,
        precision=precision,
        system=system,
        scores=scores,
        values=v * beta,
        queries=q[plan.free :] * enter,
        readers=bk[plan.free :] * enter,
        writers=plan.sources(k) * leave,
        total=decay.total(),
    )
    return _Parts(plan, precision, decay, q, k, v, bk, beta, enter, leave, chunks)


def _backward(parts: _Parts, grads: delta.Gradients) -> tuple[torch.Tensor, ...]:
    """Gradients by the chunked q (scaled), k, v, g, beta.

    A cumulative decay ``c_i`` multiplies ``q_i`` and ``b_i k_i`` where they read and divides ``k_i`` where it is
    written, so its gradient is the sum of these times their gradients, with that sign: no sum over pairs is needed.
    """
    plan, q, k, beta = parts.plan, parts.q, parts.k, parts.beta
    grads.system.diagonal(dim1=-2, dim2=-1).zero_()
    dq, dbk, dk = parts.decay.products_backward(q, parts.bk, k, grads.scores, grads.system)
    dq[plan.free :].addcmul_(grads.queries, parts.enter)
    dbk[plan.free :].addcmul_(grads.readers, parts.enter)
    plan.add_to_sources(dk, grads.writers * parts.leave)
    reads = (k * dbk).neg_()  # gradients by bk come with the sign turned
    dbeta = (grads.values * parts.v).sum(-1).add_(reads.sum(-1))
    dsums = reads.mul_(beta).addcmul_(q, dq).addcmul_(k, dk, value=-1)
    last = (grads.writers * parts.chunks.writers).sum(-2)
    last[plan.links - plan.passing :] += grads.total
    dg = parts.decay.backward(dsums, last)
    return dq, dk.addcmul_(dbk, beta, value=-1), grads.values.mul_(beta), dg, dbeta


def _row(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    return x.reshape(-1, *x.shape[2:]).to(precision.state)


def _ungroup(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum the gradients ``[N, H, K]`` of value heads that share a query or key head of ``like``."""
    held = like.shape[2]
    return grad if grad.shape[1] == held else grad.unflatten(1, (held, -1)).sum(2)
