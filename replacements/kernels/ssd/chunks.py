"""The chunked form of the Mamba-2 recurrence with its hand-written backward pass, a block of chunks at a time.

Within a chunk the output is a masked product of "attention" form; between chunks a state is passed on. Both passes
build these intermediates for one block of chunks, use them and drop them; the backward pass recomputes them from the
state at the block's start.

Memory: kept between the passes are the inputs and one state ``[G, N, H/G * P]`` per block. Alive within a pass are a
few tensors ``[c, H, l, l]`` and ``[c, G, N, H/G * P]``, for one block. Keeping them would save the backward pass about
a fifth of its products and cost ``(l + N * P / l) / P`` times the input in float32, for every layer.

Letters: c chunks in the block, l slots of a chunk, H heads in G groups, P the head width, N the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from ..crossing import across_pairs, from_start, to_end
from ..linear_recurrence import reverse_scan_, scan_
from ..precision import Precision, without_autocast
from .plan import Block

_INF = float("inf")


class ChunkedScan(torch.autograd.Function):
    """y[t] = C[t] h[t] + D x[t] for flattened rows.

    Inputs: x ``[T, H, P]``, B and C ``[T, G, N]``, step and log decay ``[T, H]``, D ``[H, P]`` or None, the blocks, the
    dtype of the output ``[T, H, P]``. Computes in the dtype of the step.
    """

    @staticmethod
    @without_autocast
    def forward(ctx, x, B, C, step, log_decay, D, blocks, dtype):
        """Process the blocks in order, keeping the state at the start of each that receives one."""
        out = torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)
        carry, carries = None, []
        for block in blocks:
            carries.append(carry)
            chunks = _Chunks.load(block, x, B, C, step, log_decay)
            y = chunks.within().transpose(1, 2)
            carry = None
            if block.linked:
                states = chunks.states(carries[-1])
                y = chunks.between(states).mul_(chunks.enter).add_(y)
                carry = states[-1].clone()
            if D is not None:
                y = torch.addcmul(y, chunks.x, D)
            out[block.start : block.stop] = _to_tokens(block, y)
        ctx.save_for_backward(x, B, C, step, log_decay, D, *(c for c in carries if c is not None))
        ctx.blocks, ctx.carried = blocks, [c is not None for c in carries]
        return out

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad_out):
        """Recompute and differentiate the blocks in reverse."""
        x, B, C, step, log_decay, D, *kept = ctx.saved_tensors
        inputs = (x, B, C, step, log_decay)
        grads = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in inputs]
        grad_skip, grad_carry = (None if D is None else torch.zeros_like(D)), None
        for block, carried in zip(reversed(ctx.blocks), reversed(ctx.carried), strict=True):
            chunks = _Chunks.load(block, *inputs)
            span = slice(block.start, block.stop)
            if D is not None:
                grad_skip += (grad_out[span].to(D.dtype) * x[span]).sum(0)
            grad_y = _to_chunks(block, grad_out, step.dtype)
            parts, grad_carry = _block_backward(chunks, grad_y, D, kept.pop() if carried else None, grad_carry)
            for grad, part in zip(grads, parts, strict=True):
                grad[span] = _to_tokens(block, part)
        return *grads, grad_skip, None, None


def _to_chunks(block: Block, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The block's tokens of ``[T, ...]`` as ``[c, l, ...]``."""
    x = x[block.start : block.stop]
    x = x if block.index is None else x.index_select(0, block.index)
    return x.to(dtype).reshape(*block.document.shape, *x.shape[1:])


def _to_tokens(block: Block, x: torch.Tensor) -> torch.Tensor:
    """``[c, l, ...]`` back to the block's tokens."""
    x = x.flatten(0, 1)
    return x if block.inverse is None else x.index_select(0, block.inverse)


@dataclass(frozen=True)
class _Chunks:
    """What both passes need of a block.

    Attributes:
        x: Input, ``[c, l, H, P]``.
        step: Step size, ``[c, l, H, 1]``.
        v: Input times step, ``[c, l, H, P]``.
        B, C: ``[c, G, l, N]``.
        scores: C[i] · B[j], ``[c, G, l, l]``.
        decay: From slot j to slot i, zero unless j is at or before i in the same document, ``[c, H, l, l]``.
        enter: From the chunk's start to slot i, zero outside the document that enters, ``[c, l, H, 1]``.
        leave: From slot j to the chunk's end, zero outside the document that leaves, ``[c, l, H, 1]``.
        through: Of a state across the chunk, zero unless its document fills it, ``[c, H]``.
    """

    block: Block
    x: torch.Tensor
    step: torch.Tensor
    v: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    scores: torch.Tensor
    decay: torch.Tensor
    enter: torch.Tensor
    leave: torch.Tensor
    through: torch.Tensor

    @classmethod
    def load(cls, block, x, B, C, step, log_decay) -> _Chunks:
        dtype = step.dtype
        x, B, C, step, log_decay = (_to_chunks(block, t, dtype) for t in (x, B, C, step, log_decay))
        B, C = B.transpose(1, 2).contiguous(), C.transpose(1, 2).contiguous()
        step = step.unsqueeze(-1)
        return cls(block, x, step, x * step, B, C, C @ B.mT, *_decays(block, log_decay))

    @property
    def groups(self) -> int:
        return self.B.shape[1]

    def by_group(self, x: torch.Tensor) -> torch.Tensor:
        """``[c, l, H, P]`` to ``[c, G, l, H/G * P]``: heads of a group share one product."""
        return x.reshape(*x.shape[:2], self.groups, -1).transpose(1, 2)

    def by_head(self, x: torch.Tensor) -> torch.Tensor:
        """``[c, G, l, H/G * P]`` to ``[c, l, H, P]``."""
        return x.transpose(1, 2).reshape(self.x.shape)

    def per_head(self, x: torch.Tensor) -> torch.Tensor:
        """``[c, H, ...]`` with the heads split into groups, to meet a tensor ``[c, G, 1, ...]``."""
        return x.unflatten(1, (self.groups, -1))

    def within(self) -> torch.Tensor:
        """Outputs from the chunk's own tokens, ``[c, H, l, P]``."""
        weights = self.per_head(self.decay) * self.scores.unsqueeze(2)
        return weights.flatten(1, 2) @ self.v.transpose(1, 2)

    def states(self, carry: torch.Tensor | None) -> torch.Tensor:
        """States at the chunks' starts and the block's end, ``[c + 1, G, N, H/G * P]``."""
        states = self.v.new_empty(len(self.x) + 1, self.groups, self.B.shape[3], self.x[0, 0].numel() // self.groups)
        states[0] = 0 if carry is None else carry
        torch.matmul(self.B.mT, self.by_group(self.v * self.leave), out=states[1:])
        scan_(self.through_decay(), self.split(states))
        return states

    def split(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(*states.shape[:3], -1, self.x.shape[3])

    def through_decay(self) -> torch.Tensor:
        """`through` to meet states split by head, ``[c, G, 1, H/G, 1]``."""
        return self.per_head(self.through).unsqueeze(2).unsqueeze(4)

    def between(self, states: torch.Tensor) -> torch.Tensor:
        """Outputs from the state at each chunk's start, before the decay from there, ``[c, l, H, P]``."""
        return self.by_head(self.C @ states[:-1])


def _decays(block: Block, log_decay: torch.Tensor) -> Sequence[torch.Tensor]:
    """`_Chunks.decay`, `enter`, `leave` and `through` from log decays ``[c, l, H]``."""
    padding = (block.document < 0).unsqueeze(1)
    step = log_decay.transpose(1, 2).masked_fill(padding, 0)
    # Sums start at the slot's own document, and are taken in double precision where the device has it: then what a
    # neighbour in the chunk contributes cancels to the last bit of the result.
    wide = step.to(Precision.of(step).wide)
    sums = wide.cumsum(2)
    sums -= (sums - wide).gather(2, block.first.unsqueeze(1).expand_as(sums))
    total = sums.to(step.dtype)
    rest = None if wide.dtype == step.dtype else (sums - total).to(step.dtype)
    same = (block.document.unsqueeze(2) == block.document.unsqueeze(1)).tril()
    mask = torch.zeros_like(same, dtype=step.dtype).masked_fill_(~same, -_INF).unsqueeze(1)
    decay = _differences(total, rest).add_(mask).exp_()
    enter = total.masked_fill(~block.enters.unsqueeze(1), -_INF).exp_()
    leave = (sums[:, :, -1:] - sums).to(step.dtype).masked_fill_(~block.leaves.unsqueeze(1), -_INF).exp_()
    through = total[:, :, -1].masked_fill(~block.through.unsqueeze(1), -_INF).exp_()
    return decay, enter.transpose(1, 2).unsqueeze(3), leave.transpose(1, 2).unsqueeze(3), through


def _differences(total: torch.Tensor, rest: torch.Tensor | None) -> torch.Tensor:
    """``s_i - s_j``, ``[c, H, l, l]``, of sums s given as two numbers each: one keeps no small decay by a large one."""
    out = total.unsqueeze(3) - total.unsqueeze(2)
    return out if rest is None else out.add_(rest.unsqueeze(3)).sub_(rest.unsqueeze(2))


def _block_backward(
    chunks: _Chunks,
    grad_y: torch.Tensor,
    D: torch.Tensor | None,
    carry: torch.Tensor | None,
    grad_carry: torch.Tensor | None,
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Gradients of x, B, C, step and log decay ``[c, l, ...]``, and of the state at the block's start.

    ``carry`` is the state at the block's start, ``grad_carry`` the gradient of the one at its end.
    """
    grad_v, grad_b, grad_c, grad_log = _within_backward(chunks, grad_y)
    grad_start = None
    if chunks.block.linked:
        grad_start = _between_backward(chunks, grad_y, carry, grad_carry, (grad_v, grad_b, grad_c, grad_log))
    grad_x = grad_v * chunks.step
    if D is not None:
        grad_x.addcmul_(grad_y, D)
    grad_step = (grad_v.mul_(chunks.x)).sum(3)
    return [grad_x, grad_b.transpose(1, 2), grad_c.transpose(1, 2), grad_step, grad_log.transpose(1, 2)], grad_start


def _within_backward(chunks: _Chunks, grad_y: torch.Tensor) -> Sequence[torch.Tensor]:
    """Gradients of v ``[c, l, H, P]``, B and C ``[c, G, l, N]``, and log decays ``[c, H, l]``."""
    grad_heads = grad_y.transpose(1, 2).contiguous()
    scores = chunks.scores.unsqueeze(2)
    grad = grad_heads @ chunks.v.permute(0, 2, 3, 1)
    grad.mul_(chunks.decay)
    grad_scores = chunks.per_head(grad).sum(2)
    grad_log = across_pairs(chunks.per_head(grad).mul_(scores).flatten(1, 2))
    weights = torch.mul(chunks.per_head(chunks.decay), scores, out=chunks.per_head(grad)).flatten(1, 2)
    grad_v = (weights.mT @ grad_heads).transpose(1, 2)
    return grad_v.contiguous(), grad_scores.mT @ chunks.C, grad_scores @ chunks.B, grad_log


def _between_backward(
    chunks: _Chunks,
    grad_y: torch.Tensor,
    carry: torch.Tensor | None,
    grad_carry: torch.Tensor | None,
    grads: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Add to the gradients of v, B, C and log decays; return that of the carry."""
    grad_v, grad_b, grad_c, grad_log = grads
    states = chunks.states(carry)
    decayed = grad_y * chunks.enter
    grouped = chunks.by_group(decayed)
    grad_states = torch.empty_like(states)
    grad_states[-1] = 0 if grad_carry is None else grad_carry
    torch.matmul(chunks.C.mT, grouped, out=grad_states[:-1])
    reverse_scan_(chunks.through_decay(), chunks.split(grad_states))

    grad_c += grouped @ states[:-1].mT
    grad_log += from_start(chunks.between(states).mul_(decayed).sum(3).transpose(1, 2))

    leaving = chunks.v * chunks.leave
    grad_leaving = chunks.by_head(chunks.B @ grad_states[1:])
    grad_b += chunks.by_group(leaving) @ grad_states[1:].mT
    grad_v.addcmul_(grad_leaving, chunks.leave)
    grad_log += to_end(leaving.mul_(grad_leaving).sum(3).transpose(1, 2))

    across = chunks.split(states[:-1]) * chunks.split(grad_states[1:])
    across = across.sum((2, 4)).flatten(1, 2).mul_(chunks.through)
    grad_log += across.unsqueeze(2)
    return grad_states[0]
