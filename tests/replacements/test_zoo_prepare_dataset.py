"""The zoo's dataset preparation, on a stand-in of the same build: rewritten, used, handed over to and taken back."""

import sys
import types

import pytest
import trl
from datasets import Dataset
from trl.trainer.sft_trainer import SFTTrainer

from patcher import _engine, _ledger, _log
from replacements.packing import zoo
from replacements.sft_prepare_dataset import REWRITE as IN_TRL
from replacements.zoo_prepare_dataset import REWRITE

#: As published: one flag, asked in nested functions; a name for the packer that the module itself does not define.
DATASET_UTILS = """
def sft_prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
    max_seq_length = getattr(args, "max_length", 0)
    if max_seq_length == 0: raise RuntimeError("no length")
    do_truncation = max_seq_length != 0  # noqa
    do_tokenize = True

    def _tokenize(example):
        ids = [int(word) for word in example["text"].split()]
        mask = [1] * len(ids)
        if do_truncation and max_seq_length > 0:
            ids, mask = ids[:max_seq_length], mask[:max_seq_length]
        return {"input_ids": ids, "completion_mask": mask}
    pass
    dataset = dataset.map(_tokenize, remove_columns=["text"])
    if packing:
        try:
            pack_dataset
        except:
            return dataset
        dataset = pack_dataset(  # noqa: F821
            dataset.select_columns(["input_ids", "completion_mask"]),
            max_seq_length,
            getattr(args, "packing_strategy", "bfd"),
            {},
        )
    return dataset
"""
REGISTRY = """
from .dataset_utils import sft_prepare_dataset
RL_REPLACEMENTS = {"sft_prepare_dataset": sft_prepare_dataset}
"""
LENGTHS = (5, 41, 16, 23)
LIMIT = 16
DOCUMENTS = [[100 * number + i for i in range(length)] for number, length in enumerate(LENGTHS)]
TOKENS = [token for document in DOCUMENTS for token in document]


@pytest.fixture
def utils(tmp_path, monkeypatch):
    monkeypatch.setattr(_ledger, "_records", dict(_ledger._records))
    package = tmp_path / "unsloth_zoo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "dataset_utils.py").write_bytes(DATASET_UTILS.replace("\n", "\r\n").encode())
    (package / "rl_replacements.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "unsloth_zoo"]:
        monkeypatch.delitem(sys.modules, name)
    from unsloth_zoo import dataset_utils

    yield dataset_utils
    _engine.revert([REWRITE.name, IN_TRL.name])
    for name in ("unsloth_zoo", "unsloth_zoo.dataset_utils", "unsloth_zoo.rl_replacements"):
        sys.modules.pop(name, None)


def prepare(function, packing=True, **args):
    rows = Dataset.from_list([{"text": " ".join(map(str, document))} for document in DOCUMENTS])
    args = types.SimpleNamespace(**{"max_length": LIMIT, "packing_strategy": "bfd", **args})
    return function(None, rows, None, args, packing, None, "train")


def joined(column):
    return [token for row in column for token in row]


@pytest.mark.parametrize("strategy", ["wrapped", "bfd_split"])
def test_strategies_that_lose_nothing_are_given_every_token(utils, strategy):
    if strategy == "bfd_split" and '"bfd_split"' not in trl.data_utils.pack_dataset.__doc__:
        pytest.skip("this TRL has no bfd_split")
    _engine.apply([REWRITE])
    packed = prepare(utils.sft_prepare_dataset, packing_strategy=strategy)
    got = joined(packed["input_ids"])
    assert (got if strategy == "wrapped" else sorted(got)) == TOKENS
    assert len(joined(packed["completion_mask"])) == len(TOKENS)


def test_as_published_wrapped_rows_have_lost_what_was_cut(utils):
    utils.pack_dataset = trl.pack_dataset
    assert joined(prepare(utils.sft_prepare_dataset, packing_strategy="wrapped")["input_ids"]) != TOKENS


@pytest.mark.parametrize("packing", [True, False])
def test_bfd_and_no_packing_are_as_before(utils, packing):
    utils.pack_dataset = trl.pack_dataset
    before = prepare(utils.sft_prepare_dataset, packing).to_dict()
    del utils.pack_dataset
    _engine.apply([REWRITE])
    assert prepare(utils.sft_prepare_dataset, packing).to_dict() == before
    assert max(map(len, before["input_ids"])) == LIMIT


def test_wrapped_without_packing_is_cut(utils):
    """An evaluation set that is not packed, under a config that packs the training set."""
    _engine.apply([REWRITE])
    rows = prepare(utils.sft_prepare_dataset, packing=False, packing_strategy="wrapped")["input_ids"]
    assert rows[:] == [document[:LIMIT] for document in DOCUMENTS]


def test_a_packer_without_strategies_is_called_with_what_it_takes(utils, monkeypatch):
    seen = {}

    def pack_dataset(dataset, seq_length, map_kwargs=None):
        seen.update(rows=dataset["input_ids"][:], seq_length=seq_length, map_kwargs=map_kwargs)
        return dataset

    monkeypatch.setattr(trl, "pack_dataset", pack_dataset)
    _engine.apply([REWRITE])
    prepare(utils.sft_prepare_dataset)
    assert seen == {"rows": DOCUMENTS, "seq_length": LIMIT, "map_kwargs": {}}


def test_no_limit_cuts_nothing(utils):
    _engine.apply([REWRITE])
    assert prepare(utils.sft_prepare_dataset, packing=False, max_length=None)["input_ids"][:] == DOCUMENTS


@pytest.mark.parametrize("registry_first", [True, False])
def test_both_places_and_back(utils, registry_first):
    published = utils.sft_prepare_dataset
    if registry_first:
        from unsloth_zoo.rl_replacements import RL_REPLACEMENTS
    (record,) = _engine.apply([REWRITE])
    _engine.apply([REWRITE])
    from unsloth_zoo.rl_replacements import RL_REPLACEMENTS

    assert record.edits == [("bind the packer", 0), ("truncation flag", 0), ("pack call", 0)]
    assert utils.sft_prepare_dataset is RL_REPLACEMENTS["sft_prepare_dataset"] is not published
    _engine.revert([REWRITE.name])
    assert utils.sft_prepare_dataset is RL_REPLACEMENTS["sft_prepare_dataset"] is published


def test_the_trainer_hands_over_only_to_a_rewritten_function(utils, caplog, monkeypatch):
    monkeypatch.setattr(_log, "_said", set())
    assert not zoo.takes_over()
    assert "not rewritten" in caplog.text
    _engine.apply([REWRITE, IN_TRL])
    rows = Dataset.from_list([{"text": " ".join(map(str, document))} for document in DOCUMENTS])
    args = types.SimpleNamespace(max_length=LIMIT, packing_strategy="wrapped")
    prepared = SFTTrainer._prepare_dataset(None, rows, None, args, True, None, "train")
    assert joined(prepared["input_ids"]) == TOKENS


def test_left_alone_where_unsloth_is(utils, monkeypatch):
    monkeypatch.setitem(sys.modules, "unsloth", types.ModuleType("unsloth"))
    published = utils.sft_prepare_dataset
    (record,) = _engine.apply([REWRITE])
    assert (record.state, utils.sft_prepare_dataset) == (_ledger.LEFT_ALONE, published)
