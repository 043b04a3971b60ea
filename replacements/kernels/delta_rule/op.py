"""A delta rule over a packed row as one differentiable operation; its backward recomputes the forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..chunking import ChunkPlan
from ..precision import Precision, without_autocast
from ..segments import Segments
from .channel_decay import ChannelDecay
from .chunks import Chunks, Gradients, differentiate, run
from .cost import delta_rule_plan
from .inputs import check_delta_rule
from .l2norm import l2norm, l2norm_backward
from .scalar_decay import ScalarDecay

# Bytes of one intermediate [B, T, heads, channels] above which heads are worked on in groups.
_GROUP_BYTES = {"cpu": 2**23, "accelerator": 2**28}


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
        return _join([_forward(part, options) for part in _head_groups((q, k, v, g, beta))])

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad):
        parts = _head_groups((*ctx.saved_tensors, grad))
        grads = [_differentiate(part[:-1], part[-1], ctx.options) for part in parts]
        return *map(_join, zip(*grads, strict=True)), None


def _head_groups(tensors: tuple[torch.Tensor, ...]) -> list[tuple[torch.Tensor, ...]]:
    """Split q, k, v, ... along their heads, so that intermediates of a long row stay small.

    Heads are independent. On the CPU this keeps intermediates near the cache, elsewhere it bounds the peak.
    """
    q, _, v = tensors[:3]
    shared, serves = q.shape[2], v.shape[2] // q.shape[2]
    held = v.shape[0] * v.shape[1] * serves * max(q.shape[3], v.shape[3]) * torch.finfo(Precision.of(q).state).bits // 8
    limit = _GROUP_BYTES["cpu" if q.device.type == "cpu" else "accelerator"]
    count = max(1, min(shared, limit // held))
    if count == shared:
        return [tensors]
    cuts = range(0, shared, count)
    groups = []
    for begin in cuts:
        few, many = slice(begin, begin + count), slice(begin * serves, (begin + count) * serves)
        groups.append(tuple(x[:, :, few if i < 2 else many] for i, x in enumerate(tensors)))
    return groups


def _join(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(tuple(parts), dim=2)


def _forward(inputs: tuple[torch.Tensor, ...], options: _Options) -> torch.Tensor:
    q, _, v, _, _ = inputs
    parts = _prepare(*inputs, options)
    plan, chunks = parts.plan, parts.chunks
    del parts
    return plan.scatter(run(chunks)).to(q.dtype).view(*q.shape[:2], *v.shape[2:])


def _differentiate(inputs: tuple[torch.Tensor, ...], grad: torch.Tensor, options: _Options) -> list[torch.Tensor]:
    q, k, v, _, beta = inputs
    parts = _prepare(*inputs, options)
    grads = differentiate(parts.chunks, parts.plan.gather(_row(grad)))
    dq, dk, dv, dg, dbeta = _backward(parts, grads, _row(v), _row(beta))
    dq, dk = _ungroup(dq, q).mul_(options.scale), _ungroup(dk, k)
    if options.qk_l2norm:
        dq, dk = l2norm_backward(dq, q), l2norm_backward(dk, k)
    return [d.to(x.dtype).view(x.shape) for d, x in zip((dq, dk, dv, dg, dbeta), inputs, strict=True)]


@dataclass
class _Parts:
    """Inputs in chunks, ``[C, H, s, ...]``, and what their decays make of them.

    Padding holds copies of tokens; the masks in the decayed products and at the edges hide it.
    """

    plan: ChunkPlan
    precision: Precision
    decay: Any
    q: torch.Tensor
    k: torch.Tensor
    bk: torch.Tensor
    beta: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    chunks: Chunks


def _prepare(q, k, v, g, beta, options: _Options) -> _Parts:
    precision, heads = Precision.of(q), v.shape[2]
    operand = precision.operand
    channels = g.dim() == 4
    plan = delta_rule_plan(options.segments, q.device, q.shape[-1], v.shape[-1], heads, channels)
    q, k, g, beta = (_row(x, precision.state) for x in (q, k, g, beta))
    q, k = (l2norm(q, options.scale), l2norm(k)) if options.qk_l2norm else (q * options.scale, k)
    q, k, v = plan.gather(operand(q), heads), plan.gather(operand(k), heads), plan.gather(_row(v))
    beta = plan.gather(beta).unsqueeze(-1)
    decay = options.decay(plan.gather(precision.clamp_log(g)), plan, precision)
    bk = operand(k * beta)
    scores, system = decay.products(q, bk, k)
    enter, leave, total = decay.edges()
    chunks = Chunks(
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


def _backward(parts: _Parts, grads: Gradients, v: torch.Tensor, beta: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Gradients by q (scaled), k, v, g and beta, token by token: ``[N, H, ...]``.

    Args:
        parts: The inputs in chunks.
        grads: Gradients by their terms.
        v: Values ``[N, H, V]``.
        beta: Step sizes ``[N, H]``.
    """
    plan, q, k, entered = parts.plan, parts.q, parts.k, slice(parts.plan.free, None)
    grads.system.diagonal(dim1=-2, dim2=-1).zero_()
    dq, dbk, dk, within = parts.decay.products_backward(q, parts.bk, k, grads.scores, grads.system)
    queries, readers, writers = (
        x.mul_(edge)
        for x, edge in ((grads.queries, parts.enter), (grads.readers, parts.enter), (grads.writers, parts.leave))
    )
    dq[entered] += queries
    dbk[entered] += readers  # gradients by bk come with the sign turned
    plan.add_to_sources(dk, writers)
    came = queries.mul_(q[entered]).addcmul_(readers, parts.bk[entered], value=-1)
    dg = parts.decay.backward(within, came, writers.mul_(plan.sources(k)), grads.total)
    dbeta = plan.scatter((k * dbk).sum(-1).neg_())
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
