"""A tiny Qwen3.5, a tokenizer and documents, so that the examples run offline in seconds.

    python examples/tiny.py FOLDER

writes the model and its tokenizer into FOLDER, and the documents beside it as documents.txt and chats.jsonl.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from pydoc_data import topics

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig, set_seed

LAYERS = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]


def documents(count: int = 40, words: int = 60) -> list[str]:
    """Beginnings of the documentation that Python ships, of different lengths."""
    texts = sorted(topics.topics.values(), key=len)[:count]
    return [" ".join(text.split()[: 10 + (7 * i) % words]) for i, text in enumerate(texts)]


def tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on the texts."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", eos_token="<eos>")


def model(vocabulary: int) -> PreTrainedModel:
    """A Qwen3.5 of four layers, three of them linear attention, with random weights."""
    set_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=len(LAYERS),
        layer_types=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        pad_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=True,
    )
    return Qwen3_5ForCausalLM(config)


def save(folder: Path) -> None:
    """Writes the model, its tokenizer and the documents."""
    texts = documents()
    tok = tokenizer(texts)
    model(len(tok)).save_pretrained(folder)
    tok.save_pretrained(folder)
    (folder.parent / "documents.txt").write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    chats = [[{"role": "user", "content": "Explain."}, {"role": "assistant", "content": text}] for text in texts]
    lines = [json.dumps({"messages": chat}) for chat in chats]
    (folder.parent / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    save(Path(sys.argv[1]))
