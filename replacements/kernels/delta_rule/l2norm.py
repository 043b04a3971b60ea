"""Normalisation of queries and keys, with its gradient."""

from __future__ import annotations

import torch

EPS = 1e-6  # inside the root, as the fused kernels have it


def l2norm(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """``scale * x / sqrt(sum x^2 + eps)`` over the last axis."""
    return x * _inverse_norm(x).mul_(scale)


def _inverse_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vecdot(x, x).add_(EPS).rsqrt_().unsqueeze(-1)


def l2norm_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Gradient by ``x`` (any shape and dtype that ``grad`` matches in number) from that of ``l2norm(x)``."""
    x = x.reshape(grad.shape).to(grad.dtype)
    scale = _inverse_norm(x)
    unit = x * scale
    return (grad - unit * torch.linalg.vecdot(unit, grad).unsqueeze(-1)).mul_(scale)
