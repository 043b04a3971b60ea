"""A long run in small: packed steps of random lengths, with plain evaluation and generation in between.

`PATCHER_SOAK_STEPS=2000` runs it at full length.
"""

import copy
import gc
import os
import random
import weakref

import torch

import patcher
from replacements.kernels.segments import Segments
from replacements.packing import dispatch
from replacements.packing.current import current
from replacements.packing.runtime import runtime_of
from tests.support.models import log_probs, log_probs_apart, packed_row, summed_loss, tiny_model, token_documents

STEPS = int(os.environ.get("PATCHER_SOAK_STEPS", "60"))


def small_model():
    return tiny_model("qwen3_5", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])


def draw(dice):
    return [dice.choice([1, 2, 7, dice.randint(3, 40)]) for _ in range(dice.randint(2, 6))]


def step(optimizer, loss):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def tensors():
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())  # asking a proxy would wake it


def furthest(one, other):
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other, strict=True))


def test_two_runs_end_in_the_same_place():
    """Packed, and on the documents apart, each with its own weights; in float64, so that rounding does not add up."""
    models, dice = [small_model().double() for _ in range(2)], random.Random(1)
    start = [parameter.detach().clone() for parameter in models[0].parameters()]
    patcher.pack(models[0])
    ways = (lambda model, documents: log_probs(model, **packed_row(documents)), log_probs_apart)
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    for number in range(STEPS):
        documents = token_documents(draw(dice), seed=number)
        for model, way, optimizer in zip(models, ways, optimizers, strict=True):
            loss = summed_loss(way(model.train(), documents), documents)
            step(optimizer, loss / sum(len(document) for document in documents))
    packed, apart = (list(model.parameters()) for model in models)
    assert furthest(packed, apart) <= 1e-3 * furthest(apart, start)
    patcher.uninstall()


def test_a_packed_run_follows_the_documents_apart(monkeypatch):
    packed, dice = small_model(), random.Random(0)
    apart = copy.deepcopy(packed)
    patcher.pack(packed)
    before, points = hooks(packed), len(dispatch._wrapped)
    alive = weakref.WeakSet()
    made = Segments.__init__
    monkeypatch.setattr(Segments, "__init__", lambda self, *a, **k: (made(self, *a, **k), alive.add(self))[0])
    optimizer = torch.optim.SGD(packed.parameters(), lr=1e-3)
    plain = token_documents([20], seed=99)[0][None]
    early = 0
    for number in range(STEPS):
        documents = token_documents(draw(dice), seed=number)
        row = packed_row(documents)
        if number % 10 == 9:  # at the weights of this step: two runs of their own would drift apart by rounding
            apart.load_state_dict(packed.state_dict())
            with torch.no_grad():
                reference = log_probs_apart(apart, documents)
                assert (log_probs(packed.eval(), **row) - reference).abs().max() <= 1e-4
                assert torch.equal(packed(input_ids=plain).logits, apart(input_ids=plain).logits)
            assert torch.equal(*(m.generate(plain, max_new_tokens=3, do_sample=False) for m in (packed, apart)))
        tokens = sum(len(d) for d in documents)
        step(optimizer, summed_loss(log_probs(packed.train(), **row), documents) / tokens)
        if number == STEPS // 3:
            early = tensors()
    assert tensors() <= early + 2  # the row and the loss of another step
    assert runtime_of(packed).packed_forwards == STEPS + STEPS // 10
    assert hooks(packed) == before
    assert len(dispatch._wrapped) == points
    assert len(alive) <= 1
    assert current() is None
    patcher.uninstall()
