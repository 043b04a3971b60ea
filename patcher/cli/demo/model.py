"""The demo's model: a Qwen3.5 of a few million parameters, three linear-attention layers to one of full attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from patcher.cli.errors import CliError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from patcher.cli.demo.settings import Settings

LAYERS = ("linear_attention", "linear_attention", "linear_attention", "full_attention")
HALF_LIVES = (8, 32, 128, 512)
"""Tokens after which a head's memory has halved, one for each head of a linear-attention layer."""


def build(tok: PreTrainedTokenizerFast, settings: Settings) -> PreTrainedModel:
    """A freshly drawn model; the same seed gives the same weights.

    Raises:
        CliError: this transformers has no Qwen3.5.
    """
    import transformers

    if not hasattr(transformers, "Qwen3_5ForCausalLM"):
        raise CliError(
            f"transformers {transformers.__version__} has no Qwen3.5, which the demo trains",
            "pip install --upgrade transformers",
        )
    transformers.set_seed(settings.seed)
    heads = len(HALF_LIVES)
    config = transformers.Qwen3_5TextConfig(
        vocab_size=len(tok),
        hidden_size=settings.hidden,
        intermediate_size=settings.feed_forward,
        num_hidden_layers=len(LAYERS),
        layer_types=list(LAYERS),
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=settings.hidden // 4,
        linear_num_key_heads=heads,
        linear_num_value_heads=heads,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        max_position_embeddings=settings.context,
        tie_word_embeddings=True,
        pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id,
    )
    model = transformers.Qwen3_5ForCausalLM(config)
    _slow_decay(model)
    return model


def _slow_decay(model: PreTrainedModel) -> None:
    """Draw the decay so that heads remember for tens to hundreds of tokens.

    The default initialisation forgets within a token or two. Pretrained checkpoints do not, and a model that
    remembers nothing has nothing to leak. A head decays by exp(-A·softplus(dt_bias)) a token at zero input.
    """
    import torch

    for module in model.modules():
        if hasattr(module, "A_log") and hasattr(module, "dt_bias"):
            rate = torch.nn.functional.softplus(module.dt_bias.detach().float())
            half_lives = torch.tensor(HALF_LIVES, dtype=rate.dtype, device=rate.device)
            module.A_log.data.copy_(torch.log(math.log(2) / (half_lives * rate)))
