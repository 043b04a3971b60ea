"""The one place that decides in which dtype the operations compute."""

from __future__ import annotations

from dataclasses import dataclass

import torch

_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Precision:
    """Dtypes of one call.

    Attributes:
        state: Decays, recurrent states and accumulation: float32, or float64 for float64 input.
        product: Operands of the large matrix products. Half precision where the device multiplies it with float32
            accumulation in hardware, else `state`.
    """

    state: torch.dtype
    product: torch.dtype

    @classmethod
    def of(cls, x: torch.Tensor) -> Precision:
        """Choose by the dtype and device of ``x``.

        Raises:
            TypeError: ``x`` is not floating point.
        """
        if not x.is_floating_point():
            raise TypeError(f"expected a floating-point tensor, got {x.dtype}")
        state = torch.float64 if x.dtype == torch.float64 else torch.float32
        return cls(state, x.dtype if x.dtype in _HALF and x.device.type == "cuda" else state)
