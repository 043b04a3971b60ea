"""Packed loss and gradients are those of the documents apart, weighted by their tokens, however batches are cut."""

import random

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import patcher
from tests.support import sft
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


def word_tokenizer():
    """A tokenizer of words `w0` to `w127`, whose template marks what the assistant says."""
    words = {f"w{i}": i for i in range(128)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w1"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    template = (
        "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + 'w2 ' }}"
        "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{% endfor %}"
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w2", chat_template=template)


def worded(kind, rng):
    """An example as text: a prompt and its completion, or a conversation of two turns."""
    words = [" ".join(f"w{rng.randint(3, 120)}" for _ in range(rng.choice([1, 5, 20]))) + " " for _ in range(4)]
    if kind == "completion_only_loss":
        return {"prompt": words[0], "completion": words[1]}
    roles = ("user", "assistant", "user", "assistant")
    return {"messages": [{"role": role, "content": text} for role, text in zip(roles, words, strict=True)]}


@pytest.mark.parametrize("kind", ["completion_only_loss", "assistant_only_loss"])
def test_the_masks_that_trl_makes_of_text_count_the_same_tokens_packed(kind):
    rng = random.Random(0)
    rows, model = Dataset.from_list([worded(kind, rng) for _ in range(12)]), tiny_model("qwen3_5")
    settings = {kind: True, "max_length": 120, "max_grad_norm": 0.0, "processing_class": word_tokenizer()}
    alone = sft.trainer(model, rows, **settings)
    batches = [alone.data_collator([example]) for example in alone.train_dataset]
    examples = [(batch["input_ids"][0], batch["labels"][0]) for batch in batches]
    assert all(0 < int((labels == -100).sum()) < len(labels) for _, labels in examples)
    expected = expected_gradients(model, examples)
    trainer = sft.trainer(model, rows, packing=True, per_device_train_batch_size=len(rows), **settings)
    assert 1 < len(trainer.train_dataset) < len(rows)
    assert relative_error(step_gradients(trainer), expected) <= 1e-4


def test_evaluation_alone_is_the_mean_over_documents():
    model, documents = tiny_model("qwen3_5"), token_documents([20, 45, 3, 17])
    evaluated = Dataset.from_dict({"input_ids": [d.tolist() for d in documents]})
    trainer = sft_trainer(model, documents, packing=True, eval_dataset=evaluated, prediction_loss_only=True)
    with torch.no_grad():
        losses = [-log_probs(model, input_ids=d[None])[:-1].gather(1, d[1:, None]).sum() for d in documents]
    expected = float(sum(losses)) / sum(len(d) - 1 for d in documents)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, abs=1e-4)
