"""Which fields of a config are sizes, and how each is cut so that the model still fits together."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: Divided by one factor, exactly: heads times their width is a width in many families.
_TIED = (
    *("hidden_size", "n_embd", "d_model", "attention_hidden_size", "lru_width", "mamba_d_ssm", "embedding_dim"),
    *("num_attention_heads", "n_head", "swa_num_attention_heads", "mamba_n_heads", "mamba_num_heads", "num_heads"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_num_heads"),
)
#: Divided by the same factor, and one at least: nothing is their product.
_LOOSE = (
    *("intermediate_size", "n_inner", "d_ff", "ffn_dim", "conv_dim", "block_ff_dim", "ple_embed_dim"),
    *("num_key_value_heads", "swa_num_key_value_heads", "n_groups", "mamba_n_groups", "mamba_ngroups"),
    *("n_mamba_heads", "index_n_heads", "num_query_groups", "time_step_rank", "mamba_dt_rank", "out_hidden_size"),
)
#: At most so much.
_CAPPED = {
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "ngram_vocab_size_base", "vocab_size_per_layer_input"), 512),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group", "split_ngram_parts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"), 64),
    "shared_expert_intermediate_size": 64,
    "num_nextn_predict_layers": 0,
    "adapter_rank": 16,
}
#: In the parts of a model that text does not run through: as few layers as there can be.
_DEPTHS = ("depth", "num_hidden_layers", "num_layers", "encoder_layers")
_TOKEN_ID = re.compile(r"token_(id|ids|index)$")
#: No width is cut below this, so that weights drawn at 1/sqrt(fan_in) still mix.
_NARROWEST = 64


def factors(text: Mapping[str, Any]) -> list[int]:
    """By how much widths can be divided, the smallest model first; 1 is always among them.

    Args:
        text: The config of the decoder as a dict.
    """
    tied = [text[name] for name in _TIED if _is_size(text.get(name))]
    width = next((text[name] for name in _TIED[:3] if _is_size(text.get(name))), _NARROWEST)
    exact = {f for f in _divisors(math.gcd(*tied) if tied else 1) if width // f >= _NARROWEST}
    two_heads = {f for f in exact if all(size // f >= 2 for size in tied)}
    rough = {f for f in _divisors(width) if width // f >= _NARROWEST} - exact
    ordered = [*sorted(two_heads, reverse=True), *sorted(exact - two_heads, reverse=True), *sorted(rough, reverse=True)]
    return list(dict.fromkeys([*[f for f in ordered if f > 1], 1]))


def cut(config: dict[str, Any], text_name: str | None, factor: int) -> dict[str, Any]:
    """The config as a dict, with small sizes and every layer.

    Args:
        config: A config as `to_dict` gives it.
        text_name: The key of the decoder's config in it; `None` if it is the decoder's itself.
        factor: What widths and head counts are divided by; head widths stay as they are.
    """
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    small = _cut_decoder(config, factor)
    for name, part in config.items():
        if isinstance(part, dict) and name.endswith("_config"):
            small[name] = _cut_decoder(part, factor) if name == text_name else _cut_part(part, factor)
    vocabulary = (small[text_name] if text_name else small).get("vocab_size", 0)
    free = iter(range(vocabulary - 1, -1, -1))
    return _within(small, vocabulary, free)


def _cut_decoder(text: dict[str, Any], factor: int) -> dict[str, Any]:
    small = dict(text)
    for name in (*_TIED, *_LOOSE):
        if _is_size(text.get(name)):
            small[name] = max(1, text[name] // factor)
    for name, most in _CAPPED.items():
        if _is_size(text.get(name)):
            small[name] = min(text[name], most)
    return small


def _cut_part(part: dict[str, Any], factor: int) -> dict[str, Any]:
    """A part beside the decoder, such as a vision tower: one layer, and an output as wide as the decoder."""
    small = {name: 1 if name in _DEPTHS and _is_size(value) else value for name, value in part.items()}
    if _is_size(part.get("out_hidden_size")):
        small["out_hidden_size"] = max(1, part["out_hidden_size"] // factor)
    return small


def _within(config: dict[str, Any], vocabulary: int, free: Iterator[int]) -> dict[str, Any]:
    """Token ids outside the cut vocabulary get ids of their own at its end."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(one) for one in value]
        return next(free) if isinstance(value, int) and value >= vocabulary else value

    result = {}
    for name, value in config.items():
        if isinstance(value, dict):
            result[name] = _within(value, vocabulary, free)
        else:
            result[name] = renamed(value) if vocabulary and _TOKEN_ID.search(str(name)) else value
    return result


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
