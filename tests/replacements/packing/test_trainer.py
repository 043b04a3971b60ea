"""Through SFTTrainer itself: one packed step against the documents apart."""

import pytest
import torch

import patcher
from replacements.packing.runtime import runtime_of
from tests.support.models import gradients, log_probs, relative_error, summed_loss, tiny_model, token_documents
from tests.support.training import sft_trainer, training_batch

LENGTHS = [23, 1, 1, 1, 70, 130, 64, 5]


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    patcher.uninstall()


def reference(model, documents):
    """Mean next-token loss over all documents run alone, and its gradients."""
    tokens = sum(len(document) - 1 for document in documents)
    total = 0.0
    for document in documents:
        if len(document) > 1:
            loss = summed_loss(log_probs(model, input_ids=document[None]), [document]) / tokens
            loss.backward()
            total += float(loss)
    return total, gradients(model)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "qwen3_5_moe"])
def test_one_packed_step_equals_the_documents_apart(family):
    model, documents = tiny_model(family, output_router_logits=False), token_documents(LENGTHS)
    expected_loss, expected = reference(model, documents)
    trainer = sft_trainer(model, documents, packing=True, router_aux_loss_coef=0.0)
    batch = training_batch(trainer)
    assert batch["input_ids"].shape == (1, sum(LENGTHS))
    model.train()
    loss = trainer.compute_loss(model, batch)
    loss.backward()
    assert runtime_of(model).packed_forwards == 1
    assert abs(float(loss) - expected_loss) <= 1e-5
    assert relative_error(gradients(model), expected) <= 1e-4


def test_a_whole_training_run():
    model = tiny_model("qwen3_5")
    trainer = sft_trainer(model, token_documents(LENGTHS * 3), packing=True, max_length=256, max_steps=3)
    result = trainer.train()
    assert torch.isfinite(torch.tensor(result.training_loss))
    assert runtime_of(model).packed_forwards == 3


def test_without_packing_nothing_is_attached():
    model = tiny_model("qwen3_5")
    trainer = sft_trainer(model, token_documents(LENGTHS), per_device_train_batch_size=2)
    assert runtime_of(model) is None
    assert "attention_mask" in training_batch(trainer)
    assert "seq_idx" not in training_batch(trainer)
