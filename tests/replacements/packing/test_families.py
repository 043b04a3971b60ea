"""Every row of the table of families: each of its ops is needed, and without boundaries nothing changes."""

import pytest
import torch

from replacements.packing import dispatch, runtime
from replacements.packing.families import CONV, FAMILIES, SEQ_IDX
from replacements.packing.runtime import Runtime, attach, detach_all
from tests.support.models import (
    families,
    log_probs,
    log_probs_apart,
    packed_row,
    tiny_model,
    token_documents,
)

LENGTHS = [23, 1, 70, 40]
#: Its attention builds a mask of its own that joins the documents, so the guard pads it, ops or no ops.
PADDED = {"glm5_next"}
PRESENT = [family for family in FAMILIES if family.name in families()]
OPS = [(family.name, op) for family in PRESENT for op in (*family.ops, *((SEQ_IDX,) if family.native else ()))]


@pytest.fixture(autouse=True)
def _clean():
    yield
    detach_all()


@pytest.fixture
def row():
    return packed_row(token_documents(LENGTHS), seq_idx=False)


def leave_out(model, op, monkeypatch):
    """The runtime on the model, with one op as it is without us."""
    if op == CONV:
        monkeypatch.setattr(Runtime, "_isolate_convolution", lambda *_: None)
    if op == SEQ_IDX:
        monkeypatch.setattr(runtime, "segments_to_seq_idx", lambda segments, device: None)
    attached = Runtime(model)
    attached.checks = False
    dispatch.wrap([point for point in dispatch.points_of(attached.mixers) if op not in point.ops])
    attached._wrapped = True  # or the first forward would wrap the others
    return attached


def test_every_row_has_a_tiny_model():
    assert len(PRESENT) >= 24
    assert {op for family in FAMILIES for op in family.ops} == {op for _, op in OPS} - {SEQ_IDX}


@pytest.mark.parametrize(("name", "op"), OPS, ids=[f"{name}-{op}" for name, op in OPS])
def test_each_op_is_load_bearing(name, op, row, monkeypatch):
    model = tiny_model(name)
    with torch.no_grad():
        apart = log_probs_apart(model, token_documents(LENGTHS))
        attached = leave_out(model, op, monkeypatch)
        leaking = log_probs(model, **row)
        attached.detach()
        monkeypatch.undo()
        dispatch.unwrap_all()
        attach(model)
        isolated = log_probs(model, **row)
    assert name in PADDED or (isolated - apart).abs().max() <= 1e-4
    assert (leaking - isolated).abs().max() > 1e-3


@pytest.mark.parametrize("name", [family.name for family in PRESENT])
def test_without_boundaries_the_output_is_the_stock_one_to_the_last_bit(name, row):
    model = tiny_model(name)
    ids = torch.stack(token_documents([40, 40], seed=5))
    padded = torch.ones_like(ids)
    padded[1, 30:] = 0
    calls = [{"input_ids": ids}, {"input_ids": ids, "attention_mask": padded, "use_cache": False}]

    def results():
        with torch.no_grad():
            found = [model(**call).logits for call in calls]
        model.train()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        found += [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]
        model.zero_grad(set_to_none=True)
        model.eval()
        return found

    torch.manual_seed(0)
    before = results()
    attach(model)
    with torch.no_grad():
        log_probs(model, **row)
    torch.manual_seed(0)
    after = results()
    assert len(before) == len(after) > len(calls) + 1
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
