"""The gated delta rule over a packed row, with a backward that recomputes what the forward computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from .. import delta
from ..chunking import ChunkPlan
from ..cost import delta_rule_plan
from ..decay import ScalarDecay, clamp_log
from ..inputs import check_delta_rule, without_autocast
from ..l2norm import l2norm, l2norm_backward
from ..precision import Precision
from ..segments import Segments


def gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    segments: Segments,
    scale: float | None = None,
    qk_l2norm: bool = False,
) -> torch.Tensor:
    """Gated delta rule of each document alone (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024, eq. 10).

    Per head, from a zero state ``S`` at every document's start:
    ``S = e^g S;  S += beta k (v - S^T k)^T;  o = scale S^T q``.

    Args:
        q: Queries ``[B, T, Hk, K]``, any strides.
        k: Keys ``[B, T, Hk, K]``; each head serves ``H / Hk`` consecutive value heads.
        v: Values ``[B, T, H, V]``.
        g: Log decays ``[B, T, H]``, at most 0; ``-inf`` forgets everything.
        beta: Step sizes ``[B, T, H]``.
        segments: Documents of the flattened row of ``B * T`` tokens.
        scale: Factor of the queries, ``K ** -0.5`` if None.
        qk_l2norm: Normalise queries and keys over K first (eps 1e-6 inside the root).

    Returns:
        ``[B, T, H, V]`` in the dtype of ``q``; see `Precision` for the dtypes inside.

    Raises:
        ValueError: Shapes disagree with each other or with ``segments``.
    """
    check_delta_rule(q, k, v, g, beta, segments, channels=False)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return _GatedDeltaRule.apply(q, k, v, g, beta, segments, scale, qk_l2norm)


class _GatedDeltaRule(torch.autograd.Function):
    @staticmethod
    @without_autocast
    def forward(ctx, q, k, v, g, beta, segments, scale, qk_l2norm):
        ctx.save_for_backward(q, k, v, g, beta)
        ctx.segments, ctx.options = segments, (scale, qk_l2norm)
        parts = _prepare(q, k, v, g, beta, segments, scale, qk_l2norm)
        return parts.plan.scatter(delta.run(parts.chunks)).to(q.dtype).view(*q.shape[:2], *v.shape[2:])

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad):
        q, k, v, g, beta = inputs = ctx.saved_tensors
        scale, qk_l2norm = ctx.options
        parts = _prepare(*inputs, ctx.segments, scale, qk_l2norm)
        grad = parts.plan.gather(grad.reshape(-1, *grad.shape[2:]).to(parts.precision.state))
        grads = _backward(parts, delta.differentiate(parts.chunks, grad))
        dq, dk, dv, dg, dbeta = (parts.plan.scatter(x) for x in grads)
        dq, dk = _ungroup(dq, q).mul_(scale), _ungroup(dk, k)
        if qk_l2norm:
            dq, dk = (l2norm_backward(d, x.reshape(d.shape).to(d.dtype)) for d, x in ((dq, q), (dk, k)))
        return *(d.to(x.dtype).view(x.shape) for d, x in zip((dq, dk, dv, dg, dbeta), inputs, strict=True)), *[None] * 3


@dataclass
class _Parts:
    """Inputs in chunks, and what their decays make of them."""

    plan: ChunkPlan
    precision: Precision
    decay: ScalarDecay
    q: torch.Tensor
    k: torch.Tensor
    pairs: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    overlap: torch.Tensor  # k_i.k_j e^(c_i - c_j)
    chunks: delta.Chunks


def _prepare(q, k, v, g, beta, segments, scale, qk_l2norm) -> _Parts:
    precision, heads = Precision.of(q), v.shape[2]
    plan = delta_rule_plan(segments, q.device, q.shape[-1], v.shape[-1], heads)
    q, k, v, g, beta = (x.reshape(-1, *x.shape[2:]).to(precision.state) for x in (q, k, v, g, beta))
    if qk_l2norm:
        q, k = l2norm(q), l2norm(k)
    q, k, v = plan.gather(q * scale, heads), plan.gather(k, heads), plan.gather(v)
    valid = plan.valid.unsqueeze(1)
    g, beta = plan.gather(clamp_log(g, precision)) * valid, plan.gather(beta) * valid
    decay = ScalarDecay(g, plan, precision)
    pairs, enter, leave = decay.pairs(), decay.enter(), decay.leave()
    overlap = precision.matmul(k, k.mT).mul_(pairs)
    chunks = delta.Chunks(
        plan=plan,
        precision=precision,
        system=overlap * beta.unsqueeze(-1),
        scores=precision.matmul(q, k.mT).mul_(pairs),
        v=v,
        beta=beta,
        q_in=q[plan.free :] * enter.unsqueeze(-1),
        k_in=k[plan.free :] * enter.unsqueeze(-1),
        k_out=plan.sources(k) * leave.unsqueeze(-1),
        total=decay.total(),
    )
    return _Parts(plan, precision, decay, q, k, pairs, enter, leave, overlap, chunks)


def _backward(parts: _Parts, grads: delta.Gradients) -> tuple[torch.Tensor, ...]:
    """Gradients by the chunked q (scaled), k, v, g, beta.

    A cumulative decay ``c_i`` multiplies ``q_i`` and ``k_i`` where they read and divides ``k_i`` where it is written,
    so its gradient is ``q.dq + k.dk(read) - k.dk(written)``: no sum over the pairs of slots is needed.
    """
    plan, precision, mm = parts.plan, parts.precision, parts.precision.matmul
    q, k, free = parts.q, parts.k, parts.plan.free
    grads.system.diagonal(dim1=-2, dim2=-1).zero_()
    dbeta = grads.beta.add_((grads.system * parts.overlap).sum(-1))
    doverlap = grads.system.mul_(parts.pairs).mul_(parts.chunks.beta.unsqueeze(-1))
    dscores = grads.scores.mul_(parts.pairs)
    dq, read, written = mm(dscores, k), mm(doverlap, k), mm(doverlap.mT, k)
    precision.add_matmul(written, dscores.mT, q)
    if plan.links:
        dq[free:] += grads.q_in * parts.enter.unsqueeze(-1)
        read[free:] += grads.k_in * parts.enter.unsqueeze(-1)
        leaving = grads.k_out * parts.leave.unsqueeze(-1)
        plan.add_to_sources(written, leaving)
    dsums = (q * dq).sum(-1).add_((k * (read - written)).sum(-1))
    if plan.links:
        total = (leaving * plan.sources(k)).sum((-1, -2))
        total[plan.links - plan.passing :] += grads.total.sum(-1)
        plan.add_to_sources(dsums[..., -1], total)
    return dq, read.add_(written), grads.v, parts.decay.backward(dsums), dbeta


def _ungroup(grad: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Sum the gradients ``[N, H, K]`` of value heads that share a query or key head of ``like``."""
    held = like.shape[2]
    return grad if grad.shape[1] == held else grad.unflatten(1, (held, -1)).sum(2)
