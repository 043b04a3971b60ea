"""Packed against alone: what differs is told from rounding, and data is read as users keep it."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from datasets import Dataset, DatasetDict

import patcher
from replacements.packing import dispatch
from replacements.packing.checking import CannotCheckError, memory
from replacements.packing.runtime import runtime_of
from replacements.packing.verdict import PACK
from replacements.packing.verification import read, verify
from replacements.packing.verification.documents import encode
from replacements.packing.verification.measure import Difference, Runner
from tests.support.models import tiny_model, token_documents
from tests.support.situations import tiny_llama, with_recurrence
from tests.support.training import tiny_tokenizer

DOCUMENTS = [document.tolist() for document in token_documents([23, 1, 70, 12])]


@pytest.fixture(autouse=True)
def _unwrapped():
    yield
    dispatch.unwrap_all()


def test_a_packed_hybrid_is_its_documents_alone_and_stock_is_not():
    found = patcher.verify(tiny_model("qwen3_5"), DOCUMENTS)
    assert found.passed
    assert "gets 3 wrong" in found.sentence
    first, single, *others = found.documents
    assert first.stock.log_prob <= 1e-4
    assert single.loss is None
    assert single.patched.gradient is None
    for document in others:
        assert document.stock.log_prob > 0.1
        assert document.stock.gradient > 0.1
        assert document.patched.log_prob <= 1e-4
        assert document.patched.gradient <= 1e-4
        assert len(document.patched.along) == document.tokens


def test_in_half_precision_the_floor_is_higher():
    found = verify(tiny_model("qwen3_5", dtype=torch.bfloat16), DOCUMENTS)
    assert found.passed
    assert found.epsilon > 1e-3
    assert all(not found.agrees(document, document.stock) for document in found.documents[2:])


def test_an_op_that_does_not_isolate_is_seen(monkeypatch):
    """What `verify` is for: everything says that the model packs, and it does not."""
    points_of = dispatch.points_of
    left_out = "gated_delta_rule"
    monkeypatch.setattr(dispatch, "points_of", lambda mixers: [p for p in points_of(mixers) if left_out not in p.ops])
    monkeypatch.setattr("replacements.packing.runtime.check_handshake", lambda *args: None)
    monkeypatch.setattr(sys.modules[verify.__module__], "judged", lambda model: PACK)
    found = verify(tiny_model("qwen3_5"), DOCUMENTS)
    assert not found.passed
    assert "differ packed from alone" in found.sentence


def test_a_model_that_is_padded():
    found = verify(with_recurrence(tiny_llama()), DOCUMENTS, gradients=False)
    assert not found.passed
    assert found.documents[2].patched is None
    assert found.documents[2].stock.gradient is None
    assert found.documents[2].stock.log_prob > 1e-3


def test_what_looks_ahead_has_no_floor_to_hide_behind():
    model = tiny_llama()
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.model.register_forward_pre_hook(everything_visible, with_kwargs=True)
    found = verify(model, DOCUMENTS, gradients=False)
    assert not any(found.believable(document) for document in found.documents if document.tokens > 1)


def test_a_model_that_is_not_itself_in_another_shape_is_not_called_a_leak():
    found = verify(tiny_model("lfm2"), DOCUMENTS[:2], gradients=False)
    off = replace(found.documents[0].floor, log_prob=1.0)
    document = replace(found.documents[0], floor=off, patched=off)
    odd = replace(found, documents=(document, found.documents[1]))
    assert not odd.passed
    assert "no leak" in odd.sentence


def everything_visible(module, args, kwargs):
    ids = kwargs["input_ids"]
    return args, {**kwargs, "attention_mask": torch.ones(1, 1, ids.shape[1], ids.shape[1], dtype=torch.bool)}


def test_where_a_difference_sits():
    runner = Runner(tiny_model("lfm2"), gradients=False)
    alone = runner.alone(DOCUMENTS[2])
    leak = Difference.between(runner.packed(DOCUMENTS, 2, seq_idx=False), alone)
    assert max(leak.along[:4]) > 0.1


def test_rows_are_filled_in_order_and_documents_cut():
    found = verify(tiny_model("lfm2"), DOCUMENTS, max_length=40, gradients=False)
    assert [(d.row, d.place, d.tokens) for d in found.documents] == [(0, 0, 23), (0, 1, 1), (1, 0, 40), (2, 0, 12)]


@pytest.mark.parametrize(
    ("documents", "max_length", "said"),
    [
        ([], 40, "no documents to verify with"),
        (DOCUMENTS[:1], 40, "1 document to verify with, and nothing to pack it with"),
        ([DOCUMENTS[0], DOCUMENTS[2]], 30, "no two documents fit in a row of 30; try: --max-length 53"),
    ],
)
def test_where_nothing_is_packed_nothing_is_verified(documents, max_length, said):
    with pytest.raises(CannotCheckError, match=said):
        verify(tiny_model("lfm2"), documents, max_length=max_length, gradients=False)


def test_a_tokenizer_that_knows_no_word():
    with pytest.raises(CannotCheckError, match="makes no token"):
        verify(tiny_model("lfm2"), ["one", "two"], tokenizer=lambda text, **_: {"input_ids": []}, gradients=False)


def test_a_model_is_left_as_it_was():
    model = tiny_model("qwen3_5").train()
    state = torch.get_rng_state()
    verify(model, DOCUMENTS)
    assert model.training
    assert runtime_of(model) is None
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_json_and_picture(tmp_path):
    found = verify(tiny_model("lfm2"), DOCUMENTS)
    json.dumps(found.to_dict(), allow_nan=False)
    found.plot(tmp_path / "found.png")
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    assert "floor" in str(found)


def test_without_weights(tmp_path):
    tiny_model("qwen3_5").config.save_pretrained(tmp_path)
    with pytest.raises(CannotCheckError, match="has no weights"):
        verify(tmp_path, DOCUMENTS)


def test_a_model_that_cannot_be_run():
    with pytest.raises(CannotCheckError, match="cannot be run by itself: its weights are on the meta device"):
        verify(tiny_model("qwen3_5").to("meta"), DOCUMENTS)


def test_a_model_that_does_not_fit_is_not_loaded(tmp_path, monkeypatch):
    tiny_model("qwen3_5").save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    monkeypatch.setattr(memory, "free", lambda: 2 * size)
    with pytest.raises(CannotCheckError, match=r"with gradients needs .* are free on .*; try: --no-gradients"):
        verify(tmp_path, DOCUMENTS)
    assert verify(tmp_path, DOCUMENTS, gradients=False).passed
    monkeypatch.setattr(memory, "free", lambda: size)
    with pytest.raises(CannotCheckError, match=r"patcher check .* --no-weights"):
        verify(tmp_path, DOCUMENTS, gradients=False)


def test_documents_are_read_as_users_keep_them(tmp_path):
    tokenizer = tiny_tokenizer()
    (tmp_path / "a.txt").write_text("w5 w6\nw7\n\n \nw8\n")
    (tmp_path / "a.jsonl").write_text('{"text": "w5 w6"}\n\n{"input_ids": [3, 4]}\n')
    assert len(read(tmp_path / "a.txt", tokenizer)) == 2
    assert read(tmp_path / "a.jsonl", tokenizer) == [encode("w5 w6", tokenizer), [3, 4]]
    assert len(read(tmp_path / "a.jsonl", tokenizer, limit=1)) == 1
    DatasetDict({"train": Dataset.from_dict({"input_ids": [[1, 2], [3]]})}).save_to_disk(tmp_path / "set")
    assert read(tmp_path / "set", None) == [[1, 2], [3]]
    assert encode({"messages": [{"role": "user", "content": "w5"}]}, tokenizer) == encode("w5", tokenizer)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.txt", None, "no such file"),
        ("empty.txt", " \n", "no documents"),
        ("broken.jsonl", '{"text": "a"}\n{"te', "line 2 .* is not JSON"),
        ("columns.jsonl", '{"prompt": "a"}\n', "none of input_ids, messages, text, but prompt"),
        ("text.jsonl", '{"text": "a"}\n', "no tokenizer"),
    ],
)
def test_data_that_cannot_be_read_is_refused_in_one_line(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(CannotCheckError, match=said) as raised:
        read(tmp_path / name, None if name.startswith("text") else tiny_tokenizer())
    assert "\n" not in str(raised.value)
