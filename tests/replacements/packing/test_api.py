"""Packing without TRL: transformers' own trainer and a bare loop."""

import pytest
import torch
from datasets import Dataset
from transformers import BertConfig, BertLMHeadModel, DataCollatorWithFlattening, Trainer, TrainingArguments

import patcher
from replacements.packing.guard import PackingRefusedError
from replacements.packing.runtime import runtime_of
from tests.support.models import (
    gradients,
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    summed_loss,
    tiny_model,
    token_documents,
)

DOCUMENTS = token_documents([23, 1, 70, 12])


@pytest.fixture(autouse=True)
def _uninstalled():
    yield
    patcher.uninstall()


def test_a_bare_loop():
    model = tiny_model("mamba2")
    for document in DOCUMENTS:
        if len(document) > 1:
            summed_loss(log_probs(model, input_ids=document[None]), [document]).backward()
    expected = gradients(model)
    assert patcher.pack(model) is model
    summed_loss(log_probs(model.train(), **packed_row(DOCUMENTS)), DOCUMENTS).backward()
    assert relative_error(gradients(model), expected) <= 1e-4


@pytest.mark.parametrize("extra", [{}, {"return_seq_idx": True}, {"return_flash_attn_kwargs": True}])
def test_transformers_trainer_with_its_flattening_collator(tmp_path, extra):
    model = tiny_model("qwen3_5")
    tokens = sum(len(d) - 1 for d in DOCUMENTS)
    for document in DOCUMENTS:
        if len(document) > 1:
            (summed_loss(log_probs(model, input_ids=document[None]), [document]) / tokens).backward()
    expected = gradients(model)
    patcher.pack(model)
    rows = Dataset.from_dict({"input_ids": [d.tolist() for d in DOCUMENTS]})
    arguments = TrainingArguments(
        str(tmp_path), use_cpu=True, per_device_train_batch_size=4, report_to=[], max_steps=1, save_strategy="no"
    )
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorWithFlattening(**extra))
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.compute_loss(model.train(), batch).backward()
    assert runtime_of(model).packed_forwards == 1
    assert relative_error(gradients(model), expected) <= 1e-4


def test_a_model_that_cannot_is_refused_and_left_alone():
    model = tiny_model("rwkv")
    with pytest.raises(PackingRefusedError, match="unsupported-mixer"):
        patcher.pack(model)
    assert runtime_of(model) is None


def test_an_encoder_is_caught_by_what_it_does():
    """Bidirectional attention leaks both ways; nothing in its name says so."""
    config = BertConfig(
        vocab_size=128, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    with pytest.raises(PackingRefusedError):
        patcher.pack(BertLMHeadModel(config).eval())


def test_uninstalling_takes_the_model_back():
    model = patcher.pack(tiny_model("qwen3_5"))
    patcher.uninstall()
    assert runtime_of(model) is None
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_log_probs_of_a_packed_row_equal_the_documents_apart():
    model = tiny_model("lfm2")
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
        patcher.pack(model)
        assert (log_probs(model, **packed_row(DOCUMENTS)) - apart).abs().max() <= 1e-4
