"""Trainers that are being built, as the guard sees them, and models that leak on purpose."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import transformers
from torch import nn

from replacements.packing.situation import Situation
from tests.support.models import redraw


def settings(**changes) -> SimpleNamespace:
    """The fields of an `SFTConfig` that the guard reads."""
    return SimpleNamespace(
        **{"packing": True, "padding_free": False, "packing_strategy": "bfd", "eval_packing": None, **changes}
    )


def situation(model, *, args=None, **arguments) -> Situation:
    return Situation(model, args or settings(), **arguments)


def tiny_llama(seed: int = 0, **changes) -> nn.Module:
    """A decoder of attention alone, two layers."""
    return redraw(transformers.LlamaForCausalLM(llama_config(**changes)), seed)


def llama_config(**changes) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        **{
            "vocab_size": 128,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "pad_token_id": 0,
            **changes,
        }
    )


def tiny_encoder_decoder() -> nn.Module:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=128, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2)
    )


class RunningMean(nn.Module):
    """A recurrence under a name and with parameters that say nothing of one: a mean over all tokens so far."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, hidden_states, *args, **kwargs):
        counts = torch.arange(1, hidden_states.shape[1] + 1, device=hidden_states.device)[:, None]
        return self.inner(hidden_states + hidden_states.cumsum(1) / counts, *args, **kwargs)


class ConvolvedProjection(nn.Module):
    """A projection with a causal convolution behind it, written with `torch.nn.functional` alone."""

    def __init__(self, inner: nn.Linear, width: int = 4):
        super().__init__()
        self.inner = inner
        self.taps = nn.Parameter(torch.full((inner.out_features, 1, width), 1.0 / width))

    def forward(self, x):
        y = self.inner(x).transpose(1, 2)
        width = self.taps.shape[-1]
        padded = nn.functional.pad(y, (width - 1, 0))
        return nn.functional.conv1d(padded, self.taps, groups=y.shape[1]).transpose(1, 2)


def with_recurrence(model: nn.Module) -> nn.Module:
    model.model.layers[0].mlp = RunningMean(model.model.layers[0].mlp)
    return model


def with_convolution(model: nn.Module) -> nn.Module:
    attention = model.model.layers[0].self_attn
    attention.v_proj = ConvolvedProjection(attention.v_proj)
    return model
