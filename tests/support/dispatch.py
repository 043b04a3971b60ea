"""Counts what an operation asks of torch, so that tests can bound launches and memory without a clock."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """Records the number of calls and the largest tensor any of them returned, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.calls += 1
        for value in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(value, torch.Tensor):
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.element_size())
        return result
