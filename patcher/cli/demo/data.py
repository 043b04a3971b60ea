"""Text, tokenizer and documents of the demo.

The text is the language reference that every Python ships for ``help()``. Cut at its headings it gives some two
hundred documents from a dozen tokens to several thousand: the spread of lengths that makes padding expensive.
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from patcher.cli.demo.settings import Settings

PAD, EOS = "<pad>", "<eos>"

_UNDERLINE = r"([*=~^\"-])\1{2,}"
_HEADING = re.compile(rf"^\S.*\n{_UNDERLINE}$", re.MULTILINE)
_RULE = re.compile(rf"^{_UNDERLINE}$", re.MULTILINE)


@dataclass(frozen=True)
class Corpus:
    """Token ids of the training and the held-out documents, each ended by ``<eos>``."""

    train: list[list[int]]
    held_out: list[list[int]]

    @property
    def tokens(self) -> int:
        """Tokens in the training documents."""
        return sum(map(len, self.train))


def sections() -> list[str]:
    """The sections of Python's documentation topics, each text once.

    Topics quote one another and only underline the heading differently, so sections are compared without underlines:
    a held-out document must not stand in the training set under another heading level.
    """
    from pydoc_data.topics import topics

    found: dict[str, str] = {}
    for topic in topics.values():
        starts = sorted({0, *(match.start() for match in _HEADING.finditer(topic))})
        for start, end in zip(starts, [*starts[1:], len(topic)], strict=True):
            text = topic[start:end].strip()
            found.setdefault(" ".join(_RULE.sub("", text).split()), text)
    found.pop("", None)
    return list(found.values())


def tokenizer(texts: list[str], vocab: int, cache: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer for these texts, trained at first use and kept under ``cache``."""
    from transformers import PreTrainedTokenizerFast

    digest = hashlib.sha256("\0".join([str(vocab), *texts]).encode()).hexdigest()[:12]
    folder = cache / f"tokenizer-{digest}"
    if (folder / "tokenizer.json").exists():
        return PreTrainedTokenizerFast.from_pretrained(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=_train_bpe(texts, vocab), pad_token=PAD, eos_token=EOS)
    fast.save_pretrained(folder)
    return fast


def _train_bpe(texts: list[str], vocab: int):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[PAD, EOS], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(texts, trainer)
    return bpe


def corpus(texts: list[str], tok: PreTrainedTokenizerFast, settings: Settings) -> Corpus:
    """Tokenize, cut at the longest length, shuffle by the seed and split.

    Long sections are cut into documents of their own: TRL would truncate them in some releases and cut them in
    others, and both runs must see the same tokens. A remainder of one token has nothing to predict and is dropped.
    """
    documents = []
    for ids in tok(texts)["input_ids"]:
        ended = [*ids, tok.eos_token_id]
        pieces = [ended[i : i + settings.longest] for i in range(0, len(ended), settings.longest)]
        documents.append([piece for piece in pieces if len(piece) > 1])
    random.Random(settings.seed).shuffle(documents)
    held_out = [piece for pieces in documents[: settings.held_out] for piece in pieces]
    train = [piece for pieces in documents[settings.held_out :] for piece in pieces]
    return Corpus(train[: settings.documents], held_out)
