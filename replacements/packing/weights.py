"""Draws weights under which a leak shows.

As configured, weights are drawn so small that a layer hardly looks at its context, and decay so fast that a state
forgets a document within a few tokens: what leaks then drowns in rounding.
"""

from __future__ import annotations

import torch
from torch import nn

#: exp(-exp(-3) · softplus(-1)) a token: half of a state is left after 44 tokens.
_LOG_DECAY = -3.0
_STEP_BIAS = -1.0


def redraw(model: nn.Module, seed: int = 0) -> nn.Module:
    """Draws matrices from N(0, 1/fan_in), biases from N(0, 0.01), and slows decay; the rest stays as initialised.

    Args:
        model: Changed in place. Parameters with one value per channel (norms) are left alone.
        seed: Of the weights; the global random state is not touched.

    Returns:
        The model, in eval mode.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rpartition(".")[2]
            if leaf in ("A_log", "A"):
                parameter.fill_(_LOG_DECAY)
            elif leaf == "dt_bias":
                parameter.fill_(_STEP_BIAS)
            elif parameter.ndim >= 2:
                # Of experts in one tensor that is more than what a token meets: where rounding sends a token to another
                # expert, little changes.
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
            elif "bias" in leaf:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()
