"""Packed loss and gradients are those of the documents apart, weighted by their tokens, however batches are cut."""

import pytest
import torch
from datasets import Dataset

import patcher
from tests.support.models import gradients, log_probs, relative_error, tiny_model, token_documents
from tests.support.training import sft_trainer

LENGTHS = [23, 40, 1, 60, 33, 12, 50, 9, 30, 21]


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    patcher.uninstall()


def expected_gradients(model, examples):
    """Of the mean over every token that counts, documents run alone."""
    total = sum(int((labels[1:] != -100).sum()) for _, labels in examples)
    for ids, labels in examples:
        counted = labels[1:] != -100
        if counted.any():
            logs = log_probs(model, input_ids=ids[None])[:-1][counted]
            (-logs.gather(1, labels[1:][counted][:, None]).sum() / total).backward()
    return gradients(model)


def step_gradients(trainer):
    """The gradients of one optimizer step of the real training loop."""
    taken = {}

    def take(optimizer, *_):
        taken.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})

    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(take)
    trainer.train()
    return taken


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("masked", [False, True], ids=["all tokens", "completions"])
def test_one_step_is_the_token_weighted_mean(accumulation, masked):
    model, documents = tiny_model("qwen3_5"), token_documents(LENGTHS)
    labels = [document.clone() for document in documents]
    if masked:
        for label in labels:
            label[: len(label) // 2] = -100
    expected = expected_gradients(model, list(zip(documents, labels, strict=True)))
    trainer = sft_trainer(
        model,
        documents,
        labels=labels,
        packing=True,
        max_length=75 if accumulation == 4 else 512,
        gradient_accumulation_steps=accumulation,
        max_grad_norm=0.0,
        shuffle_dataset=False,
    )
    assert len(trainer.train_dataset) == accumulation
    assert relative_error(step_gradients(trainer), expected) <= 1e-4


def test_evaluation_alone_is_the_mean_over_documents():
    model, documents = tiny_model("qwen3_5"), token_documents([20, 45, 3, 17])
    evaluated = Dataset.from_dict({"input_ids": [d.tolist() for d in documents]})
    trainer = sft_trainer(model, documents, packing=True, eval_dataset=evaluated, prediction_loss_only=True)
    with torch.no_grad():
        losses = [-log_probs(model, input_ids=d[None])[:-1].gather(1, d[1:, None]).sum() for d in documents]
    expected = float(sum(losses)) / sum(len(d) - 1 for d in documents)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-4)
