"""The demo's documents."""

from collections import Counter

import pytest

from patcher.cli.demo import data
from patcher.cli.demo.settings import Settings

SETTINGS = Settings(vocab=400, context=128, longest=128, held_out=8)


@pytest.fixture(scope="module")
def texts():
    return data.sections()


@pytest.fixture(scope="module")
def tok(texts, tmp_path_factory):
    return data.tokenizer(texts, SETTINGS.vocab, tmp_path_factory.mktemp("cache"))


def test_documents_are_many_and_of_very_different_lengths(texts):
    lengths = sorted(map(len, texts))
    assert len(texts) > 100
    assert lengths[0] < 100
    assert lengths[-1] > 10_000


def test_no_document_stands_twice_under_another_underline(texts):
    bodies = Counter("".join(character for character in text if character.isalnum()) for text in texts)
    assert max(bodies.values()) == 1


def test_tokenizer_is_lossless_and_cached(texts, tok, tmp_path):
    assert tok.decode(tok(texts[0])["input_ids"]) == texts[0]
    first = data.tokenizer(texts, 300, tmp_path)
    (folder,) = tmp_path.iterdir()
    stamp = (folder / "tokenizer.json").stat().st_mtime_ns
    again = data.tokenizer(texts, 300, tmp_path)
    assert (folder / "tokenizer.json").stat().st_mtime_ns == stamp
    assert again.get_vocab() == first.get_vocab()
    assert (again.pad_token, again.eos_token) == (data.PAD, data.EOS)
    data.tokenizer(texts, 310, tmp_path)  # another vocabulary is another tokenizer
    assert len(list(tmp_path.iterdir())) == 2


def test_corpus_loses_no_token_but_lone_ones(texts, tok):
    corpus = data.corpus(texts, tok, SETTINGS)
    documents = corpus.train + corpus.held_out
    assert all(2 <= len(document) <= SETTINGS.longest for document in documents)
    full = sum(len(ids) + 1 for ids in tok(texts)["input_ids"])
    assert full - len(texts) <= sum(map(len, documents)) <= full
    assert corpus.tokens == sum(map(len, corpus.train))


def test_split_follows_the_seed_and_keeps_sections_whole(texts, tok):
    corpus = data.corpus(texts, tok, SETTINGS)
    assert data.corpus(texts, tok, SETTINGS) == corpus
    assert data.corpus(texts, tok, Settings(**{**vars(SETTINGS), "seed": 1})) != corpus
    ends = sum(document[-1] == tok.eos_token_id for document in corpus.held_out)
    assert SETTINGS.held_out - 1 <= ends <= SETTINGS.held_out
