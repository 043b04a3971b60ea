"""Who builds a trainer, and how: subclasses of TRL's and of the user's, every way of passing the arguments."""

import importlib
import logging
import tempfile

import pytest
import torch
from datasets import Dataset
from transformers import TrainingArguments
from trl import SFTConfig, SFTTrainer

import patcher
from replacements.packing import verdict
from replacements.packing.runtime import detach_all, runtime_of
from tests.support.models import relative_error, tiny_model, token_documents
from tests.support.sft import apart, config, rows_of_documents, step, trainer
from tests.support.situations import tiny_llama
from tests.support.training import tiny_tokenizer

DOCUMENTS = token_documents([23, 1, 70, 5, 40])


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    patcher.install()
    yield
    detach_all()
    patcher.uninstall()


def assert_right(build):
    model = tiny_model("qwen3_next")
    expected_loss, expected = apart(model, DOCUMENTS)
    loss, found = step(build(model))
    assert runtime_of(model).packed_forwards >= 1
    assert abs(loss - expected_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


class Renamed(SFTTrainer):
    """A user's trainer with arguments of its own."""

    def __init__(self, model, documents, temperature=1.0, **settings):
        self.temperature = temperature
        super().__init__(model, config(**settings), None, rows_of_documents(documents), None, tiny_tokenizer())


class OwnLoss(SFTTrainer):
    """A user's trainer with a loss of its own, which calls the model itself."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def test_a_subclass_with_arguments_of_its_own():
    assert_right(lambda model: Renamed(model, DOCUMENTS, packing=True))


def test_a_subclass_with_a_loss_of_its_own():
    assert_right(lambda model: trainer(model, rows_of_documents(DOCUMENTS), cls=OwnLoss, packing=True))


def test_a_subclass_that_was_made_before_the_patch():
    patcher.uninstall()
    cls = type("Before", (SFTTrainer,), {})
    patcher.install()
    assert_right(lambda model: trainer(model, rows_of_documents(DOCUMENTS), cls=cls, packing=True))


def test_a_subclass_that_turns_packing_on_itself():
    class Packs(SFTTrainer):
        def __init__(self, *args, **kwargs):
            kwargs["args"].packing = True
            super().__init__(*args, **kwargs)

    assert_right(lambda model: trainer(model, rows_of_documents(DOCUMENTS), cls=Packs))


def test_arguments_by_position():
    assert_right(
        lambda model: SFTTrainer(
            model, config(packing=True), None, rows_of_documents(DOCUMENTS), None, tiny_tokenizer()
        )
    )


def test_arguments_by_keyword():
    assert_right(
        lambda model: SFTTrainer(
            processing_class=tiny_tokenizer(),
            train_dataset=rows_of_documents(DOCUMENTS),
            args=config(packing=True),
            model=model,
        )
    )


def test_plain_training_arguments():
    args = TrainingArguments(output_dir=tempfile.mkdtemp(), report_to=[], use_cpu=True, max_steps=1)
    built = SFTTrainer(
        tiny_llama(), args, train_dataset=rows_of_documents(DOCUMENTS), processing_class=tiny_tokenizer()
    )
    assert isinstance(built.args, SFTConfig)
    assert built._patcher_verdict == verdict.LEAVE


def of_trl(*places):
    """A trainer and its config by the first of the modules that this TRL has."""
    for module, name in places:
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        if hasattr(found, f"{name}Trainer"):
            return getattr(found, f"{name}Trainer"), getattr(found, f"{name}Config")
    return pytest.skip("this TRL has no such trainer")


def conversations():
    words = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": "w7 w8 w9"}]
    return Dataset.from_dict({"messages": [words, words]})


def talking_tokenizer():
    made = tiny_tokenizer()
    made.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w3 {% endif %}"
    )
    return made


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", ["GKD", "GOLD"])
def test_distillation_trains_padded_and_says_why(name, packing, caplog):
    """Both bring a collator of their own."""
    cls, settings = of_trl((f"trl.experimental.{name.lower()}", name), ("trl", name))
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = cls(
            model=tiny_llama(),
            teacher_model=tiny_llama(1),
            args=config(settings, packing=packing),
            train_dataset=conversations() if name == "GKD" else rows_of_documents(DOCUMENTS),
            processing_class=talking_tokenizer(),
        )
    said = [record for record in caplog.records if record.name == "patcher"]
    assert ["[custom-collator]" in record.getMessage() for record in said] == [True] * packing
    assert not built.args.packing
    assert runtime_of(built.model) is None
