"""The families pack exactly: a packed row is the documents apart, in log-probabilities and in gradients."""

import pytest
import torch

from replacements.packing import dispatch
from replacements.packing.current import current
from replacements.packing.handshake import HandshakeError
from replacements.packing.runtime import Runtime, attach
from tests.support.models import (
    gradients,
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    summed_loss,
    tiny_model,
    token_documents,
)

FAMILIES = ["qwen3_next", "qwen3_5", "qwen3_5_moe"]
LENGTHS = [23, 1, 1, 1, 70, 130, 64, 5]


@pytest.fixture(params=FAMILIES)
def model(request):
    yield tiny_model(request.param)
    dispatch.unwrap_all()


@pytest.fixture(params=[True, False], ids=["seq_idx", "position_ids"])
def row(request):
    return packed_row(token_documents(LENGTHS), seq_idx=request.param)


def test_log_probs_equal_the_documents_apart(model, row):
    with torch.no_grad():
        apart = log_probs_apart(model, token_documents(LENGTHS))
        attach(model)
        packed = log_probs(model, **row)
    assert (packed - apart).abs().max() <= 1e-4


def test_gradients_equal_the_sum_over_documents(model, row):
    documents = token_documents(LENGTHS)
    for document in documents:
        if len(document) > 1:
            summed_loss(log_probs(model, input_ids=document[None]), [document]).backward()
    apart = gradients(model)
    attach(model)
    summed_loss(log_probs(model, **row), documents).backward()
    assert relative_error(gradients(model), apart) <= 1e-4


def test_a_neighbour_moves_nothing(model, row):
    attach(model)
    start = sum(LENGTHS[:4])
    moved = {**row, "input_ids": row["input_ids"].clone()}
    moved["input_ids"][0, start + 3] = 1
    with torch.no_grad():
        before, after = log_probs(model, **row), log_probs(model, **moved)
    end = start + LENGTHS[4]
    assert torch.equal(before[: start + 3], after[: start + 3])
    assert (before[end:] - after[end:]).abs().max() <= 1e-6
    assert (before[start + 3 : end] - after[start + 3 : end]).abs().max() > 1e-2


@pytest.fixture(params=["causal_conv1d", "gated_delta_rule"])
def one_op_left_out(request, model):
    """The runtime on the model, with the dispatch points of one op left at stock."""
    runtime = Runtime(model)
    dispatch.wrap([point for point in dispatch.points_of(runtime.mixers) if request.param not in point.ops])
    runtime._wrapped = True  # or the first forward would wrap the others
    return runtime


def test_each_op_is_load_bearing(model, row, one_op_left_out):
    one_op_left_out.checks = False
    with torch.no_grad():
        leaking = log_probs(model, **row)
        one_op_left_out.detach()
        apart = log_probs_apart(model, token_documents(LENGTHS))
    assert (leaking - apart).abs().max() > 1e-3


def test_the_handshake_stops_a_row_that_an_op_did_not_isolate(model, row, one_op_left_out):
    with pytest.raises(HandshakeError, match=r"model\.layers\.0\.linear_attn"):
        log_probs(model, **row)
    assert current() is None


def test_a_plain_row_after_a_packed_one_is_the_stock_result(model, row):
    plain = token_documents([40], seed=7)[0][None]
    with torch.no_grad():
        stock = model(input_ids=plain).logits
        attach(model)
        log_probs(model, **row)
        after = model(input_ids=plain).logits
    assert torch.equal(stock, after)
    assert current() is None


def test_generation_is_unchanged(model, row):
    prompt = token_documents([9], seed=3)[0][None]
    stock = model.generate(prompt, max_new_tokens=6, do_sample=False)
    attach(model)
    with torch.no_grad():
        log_probs(model, **row)
    assert torch.equal(stock, model.generate(prompt, max_new_tokens=6, do_sample=False))


def test_two_packed_rows_in_a_batch(model):
    first, second = token_documents([20, 44], seed=1), token_documents([50, 13, 1], seed=2)
    rows = [packed_row(first), packed_row(second)]
    batch = {name: torch.cat([r[name] for r in rows]) for name in ("input_ids", "position_ids", "seq_idx")}
    with torch.no_grad():
        apart = [log_probs_apart(model, documents) for documents in (first, second)]
        attach(model)
        packed = model(**batch).logits.log_softmax(-1)
    for got, expected in zip(packed, apart, strict=True):
        assert (got - expected).abs().max() <= 1e-4
