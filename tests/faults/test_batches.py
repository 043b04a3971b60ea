"""Batches that came without their boundaries: another collator, workers, streams, rows packed beforehand."""

import logging
import pickle

import peft
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening
from trl import SFTTrainer

from replacements.packing.boundaries import BoundaryError
from replacements.packing.guard import PackingRefusedError
from replacements.packing.runtime import runtime_of
from replacements.packing.trainer import CollatorReplacedError
from tests.support.models import relative_error, tiny_model, token_documents
from tests.support.sft import (
    HYBRID,
    SKIP_PREPARATION,
    apart,
    config,
    packed_rows,
    padding,
    rows_of_documents,
    step,
    stream,
    trainer,
)
from tests.support.situations import tiny_encoder_decoder, tiny_llama

DOCUMENTS = token_documents([23, 1, 70, 5, 40])


@pytest.fixture
def model():
    return tiny_model(HYBRID)


def assert_one_step_is_right(model, build, documents=DOCUMENTS):
    expected_loss, expected = apart(model, documents)
    loss, found = step(build())
    assert abs(loss - expected_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


def test_a_collator_put_in_place_after_construction(model):
    """The boundaries were gone with the collator, and the flags stayed on."""
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    built.data_collator = padding
    with pytest.raises(CollatorReplacedError, match=r"function.*after the trainer was built"):
        built.train()


def test_a_collator_put_in_place_is_noticed_in_evaluation(model):
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, eval_dataset=rows_of_documents(DOCUMENTS))
    built.data_collator = padding
    with pytest.raises(CollatorReplacedError):
        built.evaluate()


def test_a_subclass_that_sets_its_collator_after_construction(model):
    class Own(SFTTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.data_collator = padding

    built = trainer(model, rows_of_documents(DOCUMENTS), cls=Own, packing=True)
    with pytest.raises(CollatorReplacedError):
        built.train()


@pytest.mark.parametrize("rows", [1, 5])
def test_a_collator_in_place_that_says_where_documents_start(model, rows):
    """It knows what it does: its boundaries are used, and a batch of one document is no error."""

    def build():
        settings = {"padding_free": True, "max_length": None, "per_device_train_batch_size": rows}
        built = trainer(model, rows_of_documents(DOCUMENTS), **settings)
        built.data_collator = DataCollatorWithFlattening()
        return built

    if rows == len(DOCUMENTS):
        assert_one_step_is_right(model, build)
    else:
        step(build())


def test_generation_beside_a_replaced_collator(model):
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    built.data_collator = padding
    with torch.no_grad():
        assert model.generate(DOCUMENTS[0][None], max_new_tokens=2).shape == (1, 25)


def test_rows_packed_beforehand_with_packing_off(model):
    """They were trained as one document each: turning packing off cannot unpack them."""
    rows = packed_rows(DOCUMENTS)
    build = lambda: trainer(model, rows, dataset_kwargs=SKIP_PREPARATION)  # noqa: E731
    assert_one_step_is_right(model, build)


def test_rows_packed_beforehand_with_packing_on(model):
    rows = packed_rows(DOCUMENTS)
    build = lambda: trainer(model, rows, packing=True, dataset_kwargs=SKIP_PREPARATION)  # noqa: E731
    assert_one_step_is_right(model, build)


def test_several_rows_packed_beforehand_in_a_padded_batch(model):
    rows = packed_rows(DOCUMENTS[:2], DOCUMENTS[2:])
    build = lambda: trainer(model, rows, dataset_kwargs=SKIP_PREPARATION, per_device_train_batch_size=2)  # noqa: E731
    assert_one_step_is_right(model, build)


def test_rows_packed_beforehand_that_would_be_packed_again(model):
    """Each row was taken for a document, and its documents leaked into one another."""
    with pytest.raises(PackingRefusedError, match="skip_prepare_dataset"):
        trainer(model, packed_rows(DOCUMENTS), packing=True)


def test_rows_packed_beforehand_for_a_model_that_cannot_pack():
    """A guard that pads cannot pad them."""
    with pytest.raises(PackingRefusedError, match=r"packed-beforehand.*encoder-decoder"):
        trainer(tiny_encoder_decoder(), packed_rows(DOCUMENTS), dataset_kwargs=SKIP_PREPARATION)


def test_rows_packed_beforehand_in_a_stream_that_does_not_say(model):
    """Nobody saw the columns when the trainer was built; the first batch tells."""
    rows = stream(packed_rows(DOCUMENTS), known=False)
    built = trainer(model, rows, dataset_kwargs=SKIP_PREPARATION)
    assert runtime_of(model) is None
    with pytest.raises(BoundaryError, match="holds 5 documents"):
        built.train()


POSITIONS = [[i for document in DOCUMENTS for i in range(len(document))]]


@pytest.mark.parametrize("preparation", [SKIP_PREPARATION, {}])
@pytest.mark.parametrize("remove", [True, False])
def test_rows_packed_beforehand_that_say_so_by_their_positions(model, preparation, remove):
    """TRL drops the column, and the row was trained as one document."""
    rows = rows_of_documents([torch.cat(DOCUMENTS)], position_ids=POSITIONS)
    settings = {"dataset_kwargs": preparation, "remove_unused_columns": remove}
    with pytest.raises(PackingRefusedError, match=r"\[unread-boundaries\].*`position_ids`.*`seq_lengths`"):
        trainer(model, rows, packing=True, **settings)


def test_rows_packed_beforehand_by_positions_where_nobody_asked_to_pack(model, caplog):
    rows = rows_of_documents([torch.cat(DOCUMENTS)], position_ids=POSITIONS)
    for _ in range(2):
        built = trainer(model, rows, dataset_kwargs=SKIP_PREPARATION)
    assert len([r for r in caplog.records if "`position_ids`" in r.getMessage()]) == 1
    assert runtime_of(built.model) is None


@pytest.mark.parametrize("packing", [True, False])
def test_lengths_that_do_not_add_up(model, packing):
    """TRL's collator ended in an IndexError that names no cause."""
    rows = rows_of_documents([torch.cat(DOCUMENTS)], seq_lengths=[[100, 2]])
    built = trainer(model, rows, packing=packing, dataset_kwargs=SKIP_PREPARATION)
    with pytest.raises(BoundaryError, match="add up to 102 but it has 139"):
        built.train()


def evaluated(model, **settings):
    """The trainer's evaluation loss over the documents, packed or not as the settings say."""
    built = trainer(model, rows_of_documents(DOCUMENTS), eval_dataset=rows_of_documents(DOCUMENTS), **settings)
    model.eval()
    rows = list(built.get_eval_dataloader())
    return built, built.evaluate()["eval_loss"], rows


def test_packed_evaluation_beside_padded_training(model):
    """Training was right and evaluation leaked: packed rows with a mask of ones and no boundary."""
    expected, _ = apart(model, DOCUMENTS)
    built, loss, rows = evaluated(model, packing=False, eval_packing=True)
    assert len(rows) == 1
    assert rows[0]["seq_idx"].unique().numel() == len(DOCUMENTS)
    assert abs(loss - expected) <= 1e-4
    assert "attention_mask" in next(iter(built.get_train_dataloader()))


def test_padded_evaluation_beside_packed_training(model):
    apart_loss, expected = apart(model, DOCUMENTS)
    built, _, rows = evaluated(model, packing=True, eval_packing=False)
    assert [row["input_ids"].shape[1] for row in rows] == [len(document) for document in DOCUMENTS]
    loss, found = step(built)
    assert abs(loss - apart_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


def test_flattened_evaluation_beside_packed_training(model):
    """Rows of the evaluation set are joined by the collator, and stay apart."""
    expected, _ = apart(model, DOCUMENTS)
    _, loss, rows = evaluated(model, packing=True, eval_packing=False, per_device_eval_batch_size=5)
    assert len(rows) == 1
    assert abs(loss - expected) <= 1e-4


@pytest.mark.parametrize("remove", [True, False])
def test_unused_columns_removed_or_not(model, remove):
    """The lengths were dropped with the unused columns."""
    data = rows_of_documents(DOCUMENTS, topic=["a", "b", "c", "d", "e"])
    assert_one_step_is_right(model, lambda: trainer(model, data, packing=True, remove_unused_columns=remove))


@pytest.mark.parametrize("remove", [True, False])
def test_unused_columns_of_rows_packed_beforehand(model, remove):
    rows = packed_rows(DOCUMENTS).add_column("topic", ["a"])
    settings = {"dataset_kwargs": SKIP_PREPARATION, "remove_unused_columns": remove}
    assert_one_step_is_right(model, lambda: trainer(model, rows, **settings))


@pytest.mark.parametrize("known", [True, False])
def test_a_stream(model, known):
    data = stream(rows_of_documents(DOCUMENTS), known)
    try:
        built = trainer(model, data, packing=True)
    except TypeError:
        pytest.skip("this TRL wants a stream to know its columns")
    assert_one_step_is_right(model, lambda: built)


def test_batches_dispatched_from_one_process(model):
    settings = {"packing": True, "accelerator_config": {"dispatch_batches": True}}
    assert_one_step_is_right(model, lambda: trainer(model, rows_of_documents(DOCUMENTS), **settings))


def test_batches_split_among_processes(model):
    """What travels in a batch has the shape of the token ids, so that it can be sliced."""
    batch = next(iter(trainer(model, rows_of_documents(DOCUMENTS), packing=True).get_train_dataloader()))
    assert {tuple(value.shape) for value in batch.values()} == {(1, 139)}


def test_workers_that_are_spawned(model):
    """A spawned worker imported the collator without the patch, or could not import it at all."""
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    here = next(iter(built.get_train_dataloader()))
    rows = built.train_dataset.with_format(None).to_list()
    loader = DataLoader(
        rows, batch_size=1, collate_fn=built.data_collator, num_workers=1, multiprocessing_context="spawn"
    )
    there = next(iter(loader))
    assert there.keys() == here.keys()
    assert torch.equal(there["seq_idx"], here["seq_idx"])


def test_what_is_sent_to_a_worker_names_only_what_it_can_import(model):
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    sent = pickle.dumps(built.data_collator)
    assert b"__main__" not in sent
    assert b"patcher._" not in sent


def test_a_collator_of_the_users_own(model, caplog):
    """Refused by TRL; here it trains padded and says so."""
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, data_collator=padding)
    assert [r.getMessage() for r in caplog.records if "[custom-collator]" in r.getMessage()]
    assert built.data_collator is padding
    assert len(built.train_dataset) == len(DOCUMENTS)
    built.train()


def test_a_collator_that_flattens_is_asked_for_packing(model):
    """Its rows hold several documents, whatever `packing` says."""
    data = rows_of_documents(DOCUMENTS)
    settings = {"data_collator": DataCollatorWithFlattening(), "per_device_train_batch_size": 5}
    assert_one_step_is_right(model, lambda: trainer(model, data, **settings))


def test_one_config_for_two_trainers(model):
    """The settings of the first trainer were rewritten for the second."""
    args = config(packing=True)
    padded = trainer(tiny_encoder_decoder(), rows_of_documents(DOCUMENTS), args=args)
    assert args.packing
    assert not padded.args.packing
    built = trainer(model, rows_of_documents(DOCUMENTS), args=args)
    assert built.args is args
    assert "seq_idx" in next(iter(built.get_train_dataloader()))


def test_two_trainers_of_one_model(model):
    first = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    runtime = runtime_of(model)
    second = trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    assert runtime_of(model) is runtime
    expected_loss, expected = apart(model, DOCUMENTS)
    for built in (first, second):
        loss, found = step(built)
        assert abs(loss - expected_loss) <= 1e-5
        assert relative_error(found, expected) <= 1e-4


def test_a_second_trainer_that_wraps_the_model(model):
    """Adapters after a first stage of training: the hooks of both trainers stood on one backbone."""
    expected_loss, _ = apart(model, DOCUMENTS)
    trainer(model, rows_of_documents(DOCUMENTS), packing=True)
    adapters = peft.LoraConfig(target_modules=["q_proj", "out_proj"])
    loss, _ = step(trainer(model, rows_of_documents(DOCUMENTS), packing=True, peft_config=adapters))
    assert runtime_of(model) is None
    assert abs(loss - expected_loss) <= 1e-5


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_a_prompt_that_is_learned(kind, caplog):
    """Its tokens stand in front of the row: only the first packed step showed that the boundaries do not fit."""
    prompt = getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = trainer(tiny_llama(), rows_of_documents(DOCUMENTS), packing=True, peft_config=prompt)
    assert [r.getMessage() for r in caplog.records if "[prompt-learning]" in r.getMessage()]
    assert len(built.train_dataset) == len(DOCUMENTS)
    assert "attention_mask" in next(iter(built.get_train_dataloader()))
