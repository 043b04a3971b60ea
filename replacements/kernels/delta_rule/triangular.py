"""Inverse of batches of unit lower triangular matrices."""

from __future__ import annotations

import torch

_BASE = 8


def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """``(I + L)^-1`` for the strictly lower triangle ``L`` of ``a``; the rest of ``a`` is not read.

    On the CPU this is LAPACK's substitution. Elsewhere a few batched products are quicker than a batch of small
    solves: diagonal blocks of 8 are inverted by the finite Neumann product ``(I - L)(I + L^2)(I + L^4)`` (``L^8`` is
    zero, and eight rows are too few for its powers to lose digits), then neighbouring blocks are joined, twice as
    large each time: the lower left block of the inverse of ``[[P, 0], [Q, R]]`` is ``-R^-1 Q P^-1``.

    Args:
        a: ``[..., s, s]``, ``s`` a power of two.
    """
    if a.device.type == "cpu":
        eye = torch.eye(a.shape[-1], dtype=a.dtype)
        return torch.linalg.solve_triangular(a, eye.expand_as(a), upper=False, unitriangular=True)
    return _by_doubling(a.flatten(0, -3)).view(a.shape)


def _by_doubling(a: torch.Tensor) -> torch.Tensor:
    n, size, _ = a.shape
    block = min(_BASE, size)
    inverse = _neumann(_diagonal_blocks(a, block).tril(-1))
    while block < size:
        inverse = _join(a, inverse, block)
        block *= 2
    return inverse.view(n, size, size)


def _diagonal_blocks(a: torch.Tensor, block: int) -> torch.Tensor:
    """``[n, s, s]`` to ``[n, s / block, block, block]``."""
    n, size, _ = a.shape
    grid = a.view(n, size // block, block, size // block, block)
    return grid.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2)


def _neumann(blocks: torch.Tensor) -> torch.Tensor:
    size = blocks.shape[-1]
    power = blocks.neg().flatten(0, 1)
    total = power + torch.eye(size, dtype=blocks.dtype, device=blocks.device)
    reach = 2
    while reach < size:
        power = power @ power
        total = torch.baddbmm(total, total, power)
        reach *= 2
    return total.view(blocks.shape)


def _join(a: torch.Tensor, inverse: torch.Tensor, block: int) -> torch.Tensor:
    n, pairs = a.shape[0], a.shape[1] // (2 * block)
    upper, lower = inverse[:, 0::2].flatten(0, 1), inverse[:, 1::2].flatten(0, 1)
    left = _diagonal_blocks(a, 2 * block)[..., block:, :block].flatten(0, 1)
    joined = a.new_zeros(n * pairs, 2 * block, 2 * block)
    joined[:, :block, :block] = upper
    joined[:, block:, block:] = lower
    torch.neg(lower @ (left @ upper), out=joined[:, block:, :block])
    return joined.view(n, pairs, 2 * block, 2 * block)
