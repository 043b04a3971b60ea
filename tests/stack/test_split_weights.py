"""Weights that are split or placed later (ZeRO-3, FSDP): the probe is skipped, the first packed step is checked."""

import logging

import pytest
import torch

import patcher
from replacements.packing import dispatch
from replacements.packing.handshake import HandshakeError
from replacements.packing.rules import judge_by_probe
from replacements.packing.runtime import runtime_of
from tests.support.models import tiny_model, token_documents
from tests.support.situations import settings, situation
from tests.support.training import sft_trainer, training_batch

DOCUMENTS = token_documents([23, 1, 40])


@pytest.fixture
def trainer(caplog):
    """Of a model whose weights say that they are split, as ZeRO-3's do."""
    patcher.install()
    model = tiny_model("qwen3_5")
    next(model.parameters()).ds_id = 0
    with caplog.at_level(logging.INFO, logger="patcher"):
        yield sft_trainer(model, DOCUMENTS, packing=True)
    patcher.uninstall()


def test_it_packs_and_says_that_it_was_not_probed(trainer, caplog):
    assert trainer.args.packing
    said = [record.getMessage() for record in caplog.get_records("setup")]
    assert any("partitioned by DeepSpeed ZeRO-3; the first packed step is checked" in message for message in said)
    trainer.train()
    assert runtime_of(trainer.model).packed_forwards == 1


def test_the_first_step_of_a_model_that_leaks_is_stopped(trainer):
    dispatch.unwrap_all()  # as if something had put the kernels back
    with pytest.raises(HandshakeError, match="linear_attn"):
        trainer.compute_loss(trainer.model, training_batch(trainer))


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [({"deepspeed": "zero3.json"}, None), ({"fsdp": "full_shard"}, None), ({}, "DEEPSPEED"), ({}, "FSDP")],
    ids=["deepspeed", "fsdp", "launched with deepspeed", "launched with fsdp"],
)
def test_a_model_that_is_placed_after_it_is_split_is_not_moved_for_the_probe(arguments, variable, monkeypatch, caplog):
    if variable:
        monkeypatch.setenv(f"ACCELERATE_USE_{variable}", "true")
    model = tiny_model("qwen3_5")
    model.forward = None  # any forward is an error
    facts = situation(model, args=settings(device=torch.device("cuda"), **arguments))
    with caplog.at_level(logging.INFO, logger="patcher"):
        assert judge_by_probe(facts) is None
    assert "placed later; the first packed step is checked" in caplog.text
