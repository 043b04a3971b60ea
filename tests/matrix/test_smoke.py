"""The lane's own arithmetic: a reference that did not notice a leak would pass every lane."""

import copy

import pytest
import torch

from tests.matrix import smoke, tiny


class Recurrent(torch.nn.Module):
    """A language model whose state runs on: packed documents leak unless it is told where they start."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(tiny.VOCABULARY, 8)
        self.mixer = torch.nn.GRU(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, tiny.VOCABULARY)

    def forward(self, input_ids, use_cache=False, starts=(0,)):
        ends = [*starts[1:], input_ids.shape[1]]
        parts = [self.mixer(self.embed(input_ids[:, a:b]))[0] for a, b in zip(starts, ends, strict=True)]
        return type("Output", (), {"logits": self.head(torch.cat(parts, 1))})


def step(model, rows, starts):
    """What a trainer would record for one optimizer step over packed rows."""
    taken = smoke.Step({name: weight.detach().clone() for name, weight in model.named_parameters()}, rows)
    model.zero_grad()
    targets = sum(len(row) - len(tiny.split(row)) for row in rows)
    for row in rows:
        ids = torch.tensor([row])
        logits = model(ids, starts=starts).logits[0, :-1]
        first = [start - 1 for start in starts[1:]]
        labels = ids[0, 1:].clone()
        labels[first] = -100
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / targets
        loss.backward()
        taken.loss += float(loss.detach())
    taken.gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    return taken


@pytest.fixture
def rows():
    documents = tiny.documents(2)
    return [[token for document in part for token in document] for part in (documents[:3], documents[3:])]


def compared(steps, model, scenario="packing"):
    outcome = smoke.Outcome()
    smoke.compare(model, steps, smoke.SCENARIOS[scenario], outcome)
    return outcome


STARTS = (0, tiny.LENGTHS[0], tiny.LENGTHS[0] + tiny.LENGTHS[1])


def test_documents_fill_their_rows_and_can_be_told_apart(rows):
    assert [len(row) for row in rows] == [tiny.ROW, tiny.ROW]
    assert [len(document) for document in tiny.split(rows[0])] == list(tiny.LENGTHS)
    assert tiny.split([*rows[0], tiny.PAD, tiny.PAD]) == tiny.split(rows[0])


def test_an_isolated_step_agrees(rows):
    model = Recurrent()
    outcome = compared([step(model, rows, STARTS)], copy.deepcopy(model))
    assert outcome.packed
    assert outcome.loss < 1e-5
    assert outcome.gradient < 1e-5


def test_a_leaking_step_does_not(rows):
    model = Recurrent()
    outcome = compared([step(model, rows, (0,))], copy.deepcopy(model))
    assert outcome.loss > 1e-4
    assert outcome.gradient > 1e-2


def test_a_gradient_that_never_came_is_a_difference(rows):
    model = Recurrent()
    taken = step(model, rows, STARTS)
    del taken.gradients["head.bias"]
    assert compared([taken], copy.deepcopy(model)).gradient == pytest.approx(1.0)


def test_whole_rows_are_one_document_where_trl_means_them_so(rows):
    model = Recurrent()
    taken = smoke.Step({name: weight.detach().clone() for name, weight in model.named_parameters()}, rows)
    reference = copy.deepcopy(model)
    taken.loss = smoke.apart(reference, rows)
    taken.gradients = {name: weight.grad.clone() for name, weight in reference.named_parameters()}
    assert compared([taken], copy.deepcopy(model), "wrapped").loss < 1e-6
    assert compared([taken], copy.deepcopy(model), "packing").loss > 1e-4


def test_each_step_is_compared_at_its_own_weights(rows):
    model = Recurrent()
    first = step(model, rows[:1], STARTS)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05)
    second = step(model, rows[1:], STARTS)
    assert compared([first, second], Recurrent()).gradient < 1e-5


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "lfm2", "mamba2", "minimax"])
def test_tiny_models_build_and_keep_their_experts_loss_out(family):
    model = tiny.model(family)
    assert getattr(model.config, "router_aux_loss_coef", 0.0) == 0.0
    assert all(weight.dtype == torch.float32 for weight in model.parameters())
