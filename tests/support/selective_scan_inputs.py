"""Inputs with the sizes and statistics of a trained Mamba-1 layer."""

from __future__ import annotations

import torch


def sample_inputs(
    tokens: int,
    *,
    channels: int = 1536,
    state: int = 16,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Arguments of `selective_scan` but the segments, for one row; the defaults are mamba-130m's.

    Step sizes lie about 0.02 after softplus and A between -1 and -N, as at initialisation. Parameters are float32.
    Every tensor asks for its gradient.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    per_token = {
        "u": normal(1, channels, tokens),
        "delta": normal(1, channels, tokens) * 0.5,
        "B": normal(1, state, tokens),
        "C": normal(1, state, tokens),
        "z": normal(1, channels, tokens),
    }
    decay = -torch.arange(1, state + 1, dtype=torch.float32).repeat(channels, 1)
    parameters = {"A": decay, "D": normal(channels), "delta_bias": normal(channels) * 0.1 - 4}
    inputs = {name: x.to(device, dtype) for name, x in per_token.items()}
    inputs |= {name: x.to(device) for name, x in parameters.items()}
    return {name: x.requires_grad_() for name, x in inputs.items()}
