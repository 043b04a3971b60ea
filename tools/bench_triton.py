"""Triton kernels that try few configurations: to compile all that some have takes longer than what is measured."""

from __future__ import annotations

from typing import Any


def few_configurations(count: int) -> None:
    """Let every kernel that tunes itself, and is defined after this call, try the `count` plainest of its choices.

    Args:
        count: Configurations for each kernel: those nearest to 4 warps, 3 stages and blocks of 64.
    """
    from triton.runtime.autotuner import Autotuner

    created = Autotuner.__init__

    def init(self: Any, fn: Any, arg_names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        created(self, fn, arg_names, sorted(configs, key=_oddity)[:count], *args, **kwargs)

    Autotuner.__init__ = init


def _oddity(config: Any) -> float:
    blocks = sum(abs(value - 64) / 64 for value in config.kwargs.values() if isinstance(value, int))
    return abs(config.num_warps - 4) / 4 + abs(config.num_stages - 3) / 2 + blocks
