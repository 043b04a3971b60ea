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
    """Inputs in chunks, and what their decays make of them."""

    plan: ChunkPlan
    precision: Precision
    decay: Any
    q: torch.Tensor
    k: torch.Tensor
    overlap: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    chunks: delta.Chunks


def _prepare(q, k, v, g, beta, options: _Options) -> _Parts:
    precision, heads = Precision.of(q), v.shape[2]
    plan = delta_rule_plan(options.segments, q.device, q.shape[-1], v.shape[-1], heads)
    q, k, v, g, beta = (_row(x, precision) for x in (q, k, v, g, beta))
    if options.qk_l2norm:
        q, k = l2norm(q), l2norm(k)
    q, k, v = plan.gather(q * options.scale, heads), plan.gather(k, heads), plan.gather(v)
    valid = plan.valid.unsqueeze(1)
    g, beta = plan.gather(clamp_log(g, precision)), plan.gather(beta).mul_(valid)
    decay = options.decay(g.mul_(valid if g.dim() == 3 else valid.unsqueeze(-1)), plan, precision)
    scores, overlap = decay.products(q, k)
    enter, leave = decay.enter(), decay.leave()
    chunks = delta.Chunks(
        plan=plan,
        precision=precision,
        system=overlap * beta.unsqueeze(-1),
        scores=scores,
        v=v,
        beta=beta,
        q_in=q[plan.free :] * enter,
        k_in=k[plan.free :] * enter,
        k_out=plan.sources(k) * leave,
        total=decay.total(),
    )
    return _Parts(plan, precision, decay, q, k, overlap, enter, leave, chunks)


def _backward(parts: _Parts, grads: delta.Gradients) -> tuple[torch.Tensor, ...]:
    """Gradients by the chunked q (scaled), k, v, g, beta.

    A cumulative decay ``c_i`` multiplies ``q_i`` and ``k_i`` where they read and divides ``k_i`` where it is written,
    so its gradient is ``q.dq + k.dk(read) - k.dk(written)``: no sum over the pairs of slots is needed.
    """
    plan, q, k = parts.plan, parts.q, parts.k
    grads.system.diagonal(dim1=-2, dim2=-1).zero_()
    dbeta = grads.beta.add_((grads.system * parts.overlap).sum(-1))
    doverlap = grads.system.mul_(parts.chunks.beta.unsqueeze(-1))
    dq, read, written = parts.decay.products_backward(q, k, grads.scores, doverlap)
    dq[plan.free :].addcmul_(grads.q_in, parts.enter)
    read[plan.free :].addcmul_(grads.k_in, parts.enter)
    plan.add_to_sources(written, grads.k_out * parts.leave)
    dsums = (q * dq).addcmul_(k, read - written)
    last = (grads.k_out * parts.chunks.k_out).sum(-2)
    last[plan.links - plan.passing :] += grads.total
    return dq, read.add_(written), grads.v, parts.decay.backward(dsums, last), dbeta


def _row(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    return x.reshape(-1, *x.shape[2:]).to(precision.state)


def _ungroup(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum the gradients ``[N, H, K]`` of value heads that share a query or key head of ``like``."""
    held = like.shape[2]
    return grad if grad.shape[1] == held else grad.unflatten(1, (held, -1)).sum(2)
