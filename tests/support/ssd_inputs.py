"""Inputs with the sizes and statistics of a trained Mamba-2 layer."""

from __future__ import annotations

import torch


def sample_inputs(
    tokens: int,
    *,
    heads: int = 24,
    width: int = 64,
    groups: int = 1,
    state: int = 128,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, torch.Tensor]:
    """Arguments of `ssd` but the segments, for one row; the defaults are mamba2-130m's.

    Step sizes lie about 0.02 after softplus and A between -1 and -16, as at initialisation: a state lives for tens to
    hundreds of tokens. Parameters are float32. Every tensor asks for its gradient.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    per_token = {
        "x": normal(1, tokens, heads, width),
        "dt": normal(1, tokens, heads) * 0.5,
        "B": normal(1, tokens, groups, state),
        "C": normal(1, tokens, groups, state),
    }
    parameters = {"A": -torch.linspace(1, 16, heads), "D": normal(heads), "dt_bias": normal(heads) * 0.1 - 4}
    inputs = {name: x.to(device, dtype) for name, x in per_token.items()}
    inputs |= {name: x.to(device) for name, x in parameters.items()}
    return {name: x.requires_grad_() for name, x in inputs.items()}
