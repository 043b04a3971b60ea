"""Nonsense through the guard: a verdict or an error of its own, never a traceback from inside."""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from replacements.packing import dispatch
from replacements.packing.guard import PackingRefusedError, choose, judge
from replacements.packing.settings import SettingError
from replacements.packing.situation import Situation
from replacements.packing.strings import foresee
from replacements.packing.verdict import Verdict
from tests.support.situations import tiny_llama

ACTIONS = {"pack", "pad", "refuse", "leave"}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    yield
    dispatch.unwrap_all()


class Raises:
    """Raises whatever is asked of it."""

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


class RaisesOnColumns:
    @property
    def column_names(self):
        raise OSError("the disk is gone")


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(-1, 200), max_size=3),
    st.dictionaries(st.sampled_from(["a", "vocab_size", "eos_token_id"]), st.integers(-1, 9), max_size=2),
)
configs = st.dictionaries(
    st.sampled_from(
        ["vocab_size", "is_encoder_decoder", "vision_config", "model_type", "eos_token_id", "text_config", "to_dict"]
    ),
    values,
)


def module_of(config, parts, behaviour):
    """A module with any config, any parts, and a forward that does anything."""

    class Nonsense(nn.Module):
        def __init__(self):
            super().__init__()
            self.config = SimpleNamespace(**config)
            self.layers = nn.ModuleList(parts)
            self.embed = nn.Embedding(8, 4)

        def get_input_embeddings(self):
            if behaviour == "no embedding":
                raise NotImplementedError
            return self.embed

        def forward(self, input_ids=None, **kwargs):
            if behaviour == "raises":
                raise ZeroDivisionError
            if behaviour == "nothing":
                return None
            logits = torch.full((1, input_ids.shape[1], 8), float("nan") if behaviour == "nan" else 0.0)
            return SimpleNamespace(logits=logits)

    return Nonsense()


parts = st.lists(
    st.builds(
        lambda make: make(),
        st.sampled_from(
            [
                lambda: nn.Linear(2, 2),
                lambda: nn.LSTM(2, 2),
                lambda: nn.Conv1d(4, 4, 3, groups=4),
                nn.Identity,
                type("Mamba2Mixer", (nn.Module,), {}),
                nn.Module,
            ]
        ),
    ),
    max_size=3,
)
behaviours = st.sampled_from(["fine", "raises", "nothing", "nan", "no embedding"])
models = st.one_of(
    st.builds(module_of, configs, parts, behaviours),
    st.sampled_from([None, 3, "a/b", [], SimpleNamespace(), Raises(), nn.Linear(2, 2), nn.Module()]),
    st.builds(lambda: tiny_llama(num_hidden_layers=1)),
)
datasets = st.sampled_from(
    [
        None,
        [],
        {},
        "text",
        7,
        Raises(),
        RaisesOnColumns(),
        Dataset.from_dict({}),
        Dataset.from_dict({"input_ids": [[1]], "seq_lengths": [[1]]}),
        Dataset.from_dict({"image": [1]}),
        {"a": Dataset.from_dict({"text": ["x"]}), "b": None},
        SimpleNamespace(column_names=None),
        SimpleNamespace(column_names={"train": ["text"]}),
        SimpleNamespace(column_names=["input_ids", "seq_lengths"], features={"seq_lengths": 3}),
    ]
)
arguments = st.fixed_dictionaries(
    {"packing": values, "padding_free": values},
    optional={
        "packing_strategy": st.one_of(values, st.sampled_from(["bfd", "wrapped"])),
        "eval_packing": values,
        "dataset_kwargs": st.sampled_from([None, {}, {"skip_prepare_dataset": True}]),
        "model_init_kwargs": st.sampled_from([None, {}, {"revision": "r"}, {"config": 3}]),
        "parallelism_config": st.sampled_from([None, 3, SimpleNamespace(cp_size=2), SimpleNamespace(cp_size="x")]),
        "device": st.sampled_from([None, "cpu", torch.device("cpu")]),
    },
)
collators = st.sampled_from([None, len, Raises, SimpleNamespace(padding_free=True), object()])
processors = st.sampled_from([None, 3, "tokenizer", object()])


@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    model=models,
    args=arguments,
    train=datasets,
    evaluation=datasets,
    collator=collators,
    processor=processors,
    unsafe=st.sampled_from(["pad", "raise", "perhaps"]),
)
def test_a_verdict_or_an_error_of_its_own(monkeypatch, model, args, train, evaluation, collator, processor, unsafe):
    monkeypatch.setenv("PATCHER_ON_UNSAFE", unsafe)
    situation = {
        "args": SimpleNamespace(**args),
        "data_collator": collator,
        "train_dataset": train,
        "eval_dataset": evaluation,
        "processing_class": processor,
    }
    made = judge(Situation(model, **situation))
    assert isinstance(made, Verdict)
    assert made.action in ACTIONS
    assert (made.reason is None) == (made.action in ("pack", "leave"))
    for call in (lambda: choose(SimpleNamespace(), model=model, **situation), lambda: foresee(model, **situation)):
        with contextlib.suppress(PackingRefusedError, SettingError):
            call()
