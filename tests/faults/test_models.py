"""Models that do not keep documents apart, and what was said of them."""

import logging

import pytest

from replacements.packing import dispatch
from replacements.packing.guard import PackingRefusedError
from replacements.packing.handshake import HandshakeError
from replacements.packing.runtime import runtime_of
from tests.support.models import tiny_model, token_documents
from tests.support.sft import HYBRID, rows_of_documents, trainer
from tests.support.situations import tiny_llama, with_convolution, with_recurrence

DOCUMENTS = token_documents([23, 1, 70, 5, 40])
OPS = ["causal_conv1d", "gated_delta_rule"]


def built_on(model, **settings):
    return trainer(model, rows_of_documents(DOCUMENTS), packing=True, **settings)


def unwrapped_points(points, *ops):
    return [point for point in points if not set(ops) & set(point.ops)]


@pytest.mark.parametrize("leak", [with_recurrence, with_convolution])
def test_a_layer_of_the_models_own(leak, caplog, monkeypatch):
    """A remote modeling file with a recurrence of its own, or one more convolution inside an attention layer."""
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = built_on(leak(tiny_llama()))
    assert "[leak]" in caplog.text
    assert runtime_of(built.model) is None
    assert len(built.train_dataset) == len(DOCUMENTS)
    built.train()
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "raise")
    with pytest.raises(PackingRefusedError, match=r"\[leak\]"):
        built_on(leak(tiny_llama()))


def test_a_class_whose_mixers_are_not_reached(caplog, monkeypatch):
    """Packing was reported as on for a class whose mixers had not been patched."""
    monkeypatch.setattr(dispatch, "_points", lambda mixer: [])
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = built_on(tiny_model(HYBRID))
    assert "[no-dispatch]" in caplog.text
    built.train()
    logged = built.state.log_history[0]
    assert logged["packing/packed"] == 0
    assert logged["packing/reason/no-dispatch"] == 1


@pytest.mark.parametrize("op", OPS)
def test_one_op_that_is_isolated_alone_is_seen_by_the_probe(op, caplog, monkeypatch):
    """The convolution was isolated and the delta rule was not, or the other way round."""
    everything = dispatch.points_of
    monkeypatch.setattr(dispatch, "points_of", lambda mixers: unwrapped_points(everything(mixers), op))
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = built_on(tiny_model(HYBRID))
    assert not built.args.packing
    assert "[probe-failed]" in caplog.text  # the handshake of the probe's own forward


@pytest.mark.parametrize("op", OPS)
def test_one_op_that_is_taken_away_later_stops_the_step(op):
    built = built_on(tiny_model(HYBRID))
    runtime = runtime_of(built.model)
    dispatch.unwrap_all()
    dispatch.wrap(unwrapped_points(dispatch.points_of(runtime.mixers), op))
    with pytest.raises(HandshakeError):
        built.train()
