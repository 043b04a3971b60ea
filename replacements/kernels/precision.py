"""The one place that decides in which dtype the operations compute."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Precision:
    """Dtypes of one call, and products in them. Operands are batches of matrices ``[..., m, k]``, ``[..., k, n]``.

    Attributes:
        state: Decays, recurrent states and accumulation: float32, or float64 for float64 input.
        product: Operands of the large matrix products: bfloat16 for bfloat16 input on CUDA, where the hardware
            accumulates in float32, else `state`. Float16 input takes float32 operands: gradients inside a chunk can
            exceed its range.
        wide: Cumulative decays: float64 where the device has it.
    """

    state: torch.dtype
    product: torch.dtype
    wide: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> Precision:
        """Choose by the dtype and device of ``x``.

        Raises:
            TypeError: ``x`` is not floating point.
        """
        if not x.is_floating_point():
            raise TypeError(f"expected a floating-point tensor, got {x.dtype}")
        state = torch.float64 if x.dtype == torch.float64 else torch.float32
        product = torch.bfloat16 if x.dtype == torch.bfloat16 and x.device.type == "cuda" else state
        return cls(state, product, torch.float32 if x.device.type == "mps" else torch.float64)

    def clamp_log(self, log_decay: torch.Tensor) -> torch.Tensor:
        """Log decays in `state`, bounded where their exponential is zero anyway: sums stay finite and small."""
        return log_decay.to(self.state).clamp(min=-110.0 if self.state == torch.float32 else -760.0)

    def operand(self, x: torch.Tensor) -> torch.Tensor:
        """``x`` as an operand of products; cast once what several products share."""
        return x.to(self.product)

    def matmul(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """``a @ b`` in `state`, from operands in `product`."""
        if self.product == self.state:
            return a @ b
        batch = a.shape[:-2]
        a, b = (x.to(self.product).flatten(0, -3) for x in (a, b))
        return _half_product(a, b, self.state).unflatten(0, batch)

    def add_matmul(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, alpha: float = 1.0) -> torch.Tensor:
        """``out += alpha * a @ b`` in place; ``out`` is in `state` and its batch axes can be viewed as one."""
        if self.product != self.state:
            return out.add_(self.matmul(a, b), alpha=alpha)
        flat = out.view(-1, *out.shape[-2:])
        flat.baddbmm_(a.flatten(0, -3), b.flatten(0, -3), alpha=alpha)
        return out


def _half_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Half-precision batched product; where torch can, without rounding the accumulator to half."""
    if _keeps_accumulator(a.device, a.dtype, dtype):
        return torch.bmm(a, b, out_dtype=dtype)
    return torch.bmm(a, b).to(dtype)


@functools.cache
def _keeps_accumulator(device: torch.device, half: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether ``torch.bmm`` here takes an output wider than its operands: newer versions do, on some devices."""
    ones = torch.ones(1, 8, 8, dtype=half, device=device)
    try:
        return torch.bmm(ones, ones, out_dtype=dtype).dtype == dtype
    except (TypeError, RuntimeError):
        return False


def without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a forward or backward with autocast off: the operations choose their own dtypes."""

    @functools.wraps(function)
    def run(ctx: Any, *args: Any) -> Any:
        kind = next(a.device.type for a in args if isinstance(a, torch.Tensor))
        with torch.autocast(kind, enabled=False):
            return function(ctx, *args)

    return run
