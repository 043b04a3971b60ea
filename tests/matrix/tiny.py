"""A tiny model, a tokenizer and documents, made from nothing, for one lane of the matrix."""

from __future__ import annotations

import torch
import transformers
from tokenizers import Tokenizer, models

from tools.tiny_models import exists, tiny_model

__all__ = ["exists"]

PAD, EOS, FIRST_MARK, FIRST_WORD, VOCABULARY = 0, 2, 3, 40, 128

# Three documents fill a row of 160 tokens exactly under best-fit-decreasing packing, so all rows hold as many targets.
# Boundaries at 90 and 137 lie inside chunks of 32, 64 and 128 alike.
LENGTHS = (90, 47, 23)
ROW = sum(LENGTHS)


def model(family: str) -> torch.nn.Module:
    """Builds the family's tiny model in float32."""
    return tiny_model(family, adapt=_without_router_loss)


def _without_router_loss(config: transformers.PretrainedConfig) -> transformers.PretrainedConfig:
    """Turns off the experts' load-balancing loss: over all tokens of a batch, it is not a sum over documents."""
    if hasattr(config, "router_aux_loss_coef"):
        config.router_aux_loss_coef = 0.0
        config.output_router_logits = False
    return config


def documents(rows: int) -> list[list[int]]:
    """Draws `3 * rows` documents; each starts with a token found nowhere else, by which a packed row is taken apart."""
    generator = torch.Generator().manual_seed(1)
    drawn = []
    for index, length in enumerate(LENGTHS * rows):
        words = torch.randint(FIRST_WORD, VOCABULARY, (length - 1,), generator=generator)
        drawn.append([FIRST_MARK + index, *words.tolist()])
    return drawn


def split(row: list[int]) -> list[list[int]]:
    """Takes one row apart into its documents, by their first tokens alone: no boundary metadata is trusted."""
    found: list[list[int]] = []
    for token in row:
        if FIRST_MARK <= token < FIRST_WORD:
            found.append([])
        if token != PAD:
            found[-1].append(token)
    return found


def whole(row: list[int]) -> list[list[int]]:
    """Takes one row as one document."""
    return [[token for token in row if token != PAD]]


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Builds a word-level tokenizer whose ids are the model's."""
    words = {f"w{index}": index for index in range(VOCABULARY)}
    words = {"<pad>": PAD, "<unk>": 1, "<eos>": EOS, **{word: index for word, index in words.items() if index > EOS}}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
