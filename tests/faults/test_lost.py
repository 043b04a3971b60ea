"""What said where documents start, or what listened to it, is gone: the step is right, or it stops."""

import pytest
import torch
from transformers import DataCollatorWithFlattening
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

import patcher
from replacements.packing.boundaries import BoundaryError
from replacements.packing.guard import PackingRefusedError
from replacements.packing.runtime import attach, runtime_of
from replacements.packing.trainer import BoundariesLostError
from tests.support.models import families, relative_error, tiny_model, token_documents
from tests.support.sft import HYBRID, SKIP_PREPARATION, apart, packed_rows, rows_of_documents, step, trainer
from tests.support.situations import tiny_llama

DOCUMENTS = token_documents([23, 1, 70, 5, 40])


@pytest.fixture
def model():
    return tiny_model(HYBRID)


def test_a_trainer_that_goes_on_after_uninstalling(model):
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    patcher.uninstall()
    try:
        with pytest.raises(BoundaryError, match="uninstall"):
            built.train()
        plain = model(input_ids=DOCUMENTS[0][None], labels=DOCUMENTS[0][None])
        plain.loss.backward()
    finally:
        patcher.install()
    again = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    again.train()
    assert runtime_of(model).packed_forwards == 1


def test_a_collator_of_the_users_own_that_says_where_documents_start(model):
    """The remedy that the guard names, with packing off."""
    expected_loss, expected = apart(model, DOCUMENTS)

    def flatten(examples):
        return DataCollatorWithFlattening()(examples)

    settings = {"data_collator": flatten, "per_device_train_batch_size": len(DOCUMENTS)}
    loss, found = step(trainer(model, rows_of_documents(DOCUMENTS), **settings))
    assert abs(loss - expected_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


def test_a_collator_of_the_users_own_where_the_hybrid_cannot_pack(model, monkeypatch):
    monkeypatch.setenv("PATCHER_HYBRID_PACKING", "0")

    def flatten(examples):
        return DataCollatorWithFlattening()(examples)

    settings = {"data_collator": flatten, "per_device_train_batch_size": len(DOCUMENTS)}
    built = trainer(model, rows_of_documents(DOCUMENTS), **settings)
    with pytest.raises(BoundaryError, match="cannot keep them apart"):
        step(built)


class Calling(DataCollatorForLanguageModeling):
    """A subclass whose batches come by."""

    def torch_call(self, examples):
        return super().torch_call(examples)


class Replacing(DataCollatorForLanguageModeling):
    """A subclass that makes batches itself."""

    def torch_call(self, examples):
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(e["input_ids"]) for e in examples], batch_first=True)
        return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}


def test_a_subclass_of_the_collator_is_trls_if_it_calls_it(model):
    settings = {"dataset_kwargs": SKIP_PREPARATION}
    expected_loss, _ = apart(model, DOCUMENTS)
    loss, _ = step(trainer(model, packed_rows(DOCUMENTS), data_collator=Calling(pad_token_id=0), **settings))
    assert abs(loss - expected_loss) <= 1e-5
    with pytest.raises(PackingRefusedError, match="packed-beforehand"):
        trainer(tiny_model(HYBRID), packed_rows(DOCUMENTS), data_collator=Replacing(pad_token_id=0), **settings)


def test_a_loss_that_leaves_the_boundaries_out(model):
    class Own(SFTTrainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return model(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss

    built = trainer(model, rows_of_documents(DOCUMENTS), cls=Own, packing=True)
    with pytest.raises(BoundariesLostError, match="compute_loss"):
        built.train()


def test_packed_rows_that_come_after_construction(model):
    built = trainer(model, rows_of_documents(DOCUMENTS))
    built.train_dataset = packed_rows(DOCUMENTS).with_format("torch")
    with pytest.raises(BoundaryError, match="5 documents"):
        built.train()


@pytest.mark.parametrize("make", [tiny_llama, lambda: tiny_model(HYBRID)], ids=["attention", "hybrid"])
def test_left_padded_generation_of_an_attached_model(make):
    """Behind left padding, positions look like those of packed rows."""
    model = make().eval()
    ids = torch.stack([torch.cat([torch.zeros(3, dtype=torch.long), DOCUMENTS[0][:20]]), DOCUMENTS[2][:23]])
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    expected = model.generate(ids, **options)
    attach(model)
    assert model.generate(ids, **options).equal(expected)


@pytest.mark.skipif("inkling" not in families(), reason="this transformers does not have the family")
def test_a_model_that_scales_attention_by_the_place_in_the_row():
    inkling = tiny_model("inkling")
    inkling.config.log_scaling_n_floor = 8
    assert trainer(inkling, rows_of_documents(DOCUMENTS), packing=True).args.packing is False
