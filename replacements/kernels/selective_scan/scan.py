"""The recurrence of the selective scan, block by block, with its hand-written backward pass.

A block is a run of tokens. Its states ``[m, N, d]`` exist only while the block is processed; the state at its start is
handed over from the block before. A document that begins inside a block resets the state by a decay of zero, so
blocks need not follow the documents and the cost does not depend on their number or lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.autograd.function import once_differentiable

from ..linear_recurrence import reverse_scan_, scan_
from ..precision import without_autocast
from ..segments import Segments

# State elements per block. A CPU block should stay in the cache; an accelerator's should be large enough that
# launches do not count, and small against the memory of the card.
_BLOCK_CPU = 1 << 19
_BLOCK_ACCELERATOR = 1 << 25
_BLOCK_TOKENS = 16  # at least; the states kept between the passes are one per block


@dataclass(frozen=True)
class Block:
    """Tokens ``start`` to ``stop`` of the row; `resets` are the documents' first tokens, relative to `start`."""

    start: int
    stop: int
    resets: torch.Tensor


def plan_blocks(segments: Segments, row_elements: int, device: torch.device) -> list[Block]:
    """Cut the row into blocks whose states have a size that suits the device."""
    budget = _BLOCK_CPU if device.type == "cpu" else _BLOCK_ACCELERATOR
    size = min(max(_BLOCK_TOKENS, budget // row_elements), segments.total)

    def build() -> list[Block]:
        edges = [*range(0, segments.total, size), segments.total]
        cuts = segments.offsets[:-1].searchsorted(edges).tolist()
        starts = segments.starts(device)
        return [Block(edges[i], edges[i + 1], starts[cuts[i] : cuts[i + 1]] - edges[i]) for i in range(len(edges) - 1)]

    return segments.cached(("selective_scan", size, device), build)


class BlockedScan(torch.autograd.Function):
    """y[t, d] = (Σ_n C[t, n] h[t, n, d] + D[d] u[t, d]) silu(z[t, d]) for token-major inputs.

    Inputs: u ``[T, d]``, step Δ ``[T, d]``, A ``[d, N]``, B and C ``[T, N]``, D ``[d]`` or None, z ``[T, d]`` or None,
    segments. The recurrence runs in the dtype of Δ. Output ``[T, d]`` in the dtype of u.
    """

    @staticmethod
    @without_autocast
    def forward(ctx, u, step, A, B, C, D, z, segments):
        """Scan the blocks in order, keeping the state at the start of each."""
        blocks = plan_blocks(segments, A.numel(), u.device)
        rate = A.t().contiguous()
        out = torch.empty_like(u)
        carries = step.new_empty(len(blocks), *rate.shape)
        carry, space = torch.zeros_like(rate), _workspace(blocks, rate, 2)
        for i, block in enumerate(blocks):
            data = _Inputs.load(block, step.dtype, u, step, B, C, z)
            carries[i] = carry
            _, states = _states(data, rate, carry, *space)
            y = _outputs(data, states, D)
            out[block.start : block.stop] = y if z is None else torch.mul(y, torch.sigmoid(data.z)).mul_(data.z)
            carry = states[-1].clone()
        ctx.save_for_backward(u, step, A, B, C, D, z, carries)
        ctx.blocks = blocks
        return out

    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad_out):
        """Recompute and differentiate the blocks in reverse."""
        u, step, A, B, C, D, z, carries = ctx.saved_tensors
        rate = A.t().contiguous()
        per_token = {n: torch.empty_like(t) for n, t in zip("usBCz", (u, step, B, C, z), strict=True) if t is not None}
        grad_rate, grad_skip = torch.zeros_like(rate), rate.new_zeros(rate.shape[1])
        grad_carry, space = torch.zeros_like(rate), _workspace(ctx.blocks, rate, 3)
        grad_out = grad_out.contiguous()
        for block, carry in zip(reversed(ctx.blocks), reversed(carries.unbind(0)), strict=True):
            data = _Inputs.load(block, step.dtype, u, step, B, C, z)
            grad_y = grad_out[block.start : block.stop].to(step.dtype)
            parts, grad_carry = _block_backward(data, rate, D, carry, grad_y, grad_carry, space)
            grad_rate += parts.pop("A")
            if D is not None:
                grad_skip += parts.pop("D")
            for name, part in parts.items():
                per_token[name][block.start : block.stop] = part
        grad_skip = None if D is None else grad_skip
        grads = [per_token.get(name) for name in "usBCz"]
        return *grads[:2], grad_rate.t(), *grads[2:4], grad_skip, grads[4], None


@dataclass(frozen=True)
class _Inputs:
    """One block's inputs in the dtype of the state: u, step and z ``[m, d]``, B and C ``[m, N]``."""

    resets: torch.Tensor
    u: torch.Tensor
    step: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    z: torch.Tensor | None

    @classmethod
    def load(cls, block: Block, dtype: torch.dtype, *tensors: torch.Tensor | None) -> _Inputs:
        cut = (t if t is None else t[block.start : block.stop].to(dtype) for t in tensors)
        return cls(block.resets, *cut)


def _workspace(blocks: Sequence[Block], like: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Tensors ``[m + 1, N, d]`` that all blocks share: on a CPU, fresh pages cost more than the arithmetic on them."""
    size = max(block.stop - block.start for block in blocks)
    return [like.new_empty(size + 1, *like.shape) for _ in range(count)]


def _states(
    data: _Inputs, rate: torch.Tensor, carry: torch.Tensor, decay: torch.Tensor, states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Fill ``decay`` and ``states``: decays ``[m, N, d]``; states ``[m + 1, N, d]``, the first the one at the start."""
    size = len(data.step)
    decay = torch.mul(data.step.unsqueeze(1), rate, out=decay[:size]).exp_()
    decay.index_fill_(0, data.resets, 0)
    states = states[: size + 1]
    states[0] = carry
    torch.mul(data.B.unsqueeze(2), (data.step * data.u).unsqueeze(1), out=states[1:])
    scan_(decay, states)
    return decay, states


def _outputs(data: _Inputs, states: torch.Tensor, D: torch.Tensor | None) -> torch.Tensor:
    """Outputs before the gate, ``[m, d]``."""
    y = torch.bmm(data.C.unsqueeze(1), states[1:]).squeeze(1)
    return y if D is None else y.addcmul_(data.u, D)


def _block_backward(
    data: _Inputs,
    rate: torch.Tensor,
    D: torch.Tensor | None,
    carry: torch.Tensor,
    grad_y: torch.Tensor,
    grad_carry: torch.Tensor,
    space: list[torch.Tensor],
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients by input, and that of the state at the block's start; ``grad_carry`` is that of the one at its end."""
    decay, states = _states(data, rate, carry, *space[:2])
    parts = {}
    if data.z is not None:
        gate = torch.sigmoid(data.z)
        slope = gate * (1 + data.z * (1 - gate))
        parts["z"] = _outputs(data, states, D).mul_(grad_y).mul_(slope)
        grad_y = grad_y * gate.mul_(data.z)

    parts["C"] = torch.bmm(states[1:], grad_y.unsqueeze(2)).squeeze(2)
    grad = torch.mul(data.C.unsqueeze(2), grad_y.unsqueeze(1), out=space[2][: len(decay)])
    grad[-1] += grad_carry
    reverse_scan_(decay[1:], grad)

    parts["B"] = torch.bmm(grad, (data.step * data.u).unsqueeze(2)).squeeze(2)
    grad_input = torch.bmm(data.B.unsqueeze(1), grad).squeeze(1)  # gradient of step * u
    parts["u"] = grad_input * data.step
    if D is not None:
        parts["u"].addcmul_(grad_y, D)
        parts["D"] = (grad_y * data.u).sum(0)

    grad_before = decay.mul_(grad)
    grad_start = grad_before[0].clone()
    grad_exponent = grad_before.mul_(states[:-1])  # gradient of step * rate
    parts["s"] = torch.mul(grad_exponent, rate, out=grad).sum(1).addcmul_(grad_input, data.u)
    parts["A"] = grad_exponent.mul_(data.step.unsqueeze(1)).sum(0)
    return parts, grad_start
