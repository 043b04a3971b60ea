"""A long run in small: packed steps of random lengths, with evaluation and generation in between.

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
from tests.support.models import log_probs, packed_row, summed_loss, tiny_model, token_documents

STEPS = int(os.environ.get("PATCHER_SOAK_STEPS", "40"))


def small_model():
    """In float64, as far as the mixers of transformers go: training amplifies rounding from step to step."""
    kinds = ["linear_attention", "full_attention"]
    return tiny_model("qwen3_5", num_hidden_layers=2, layer_types=kinds, dtype=torch.float64)


def draw(dice):
    return [dice.choice([1, 2, 7, dice.randint(3, 40)]) for _ in range(dice.randint(2, 6))]


def step(optimizer, loss):
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_a_packed_run_follows_the_documents_apart(monkeypatch):
    packed, dice = small_model(), random.Random(0)
    apart = copy.deepcopy(packed)
    patcher.pack(packed)
    before, points = hooks(packed), len(dispatch._wrapped)
    alive = weakref.WeakSet()
    made = Segments.__init__
    monkeypatch.setattr(Segments, "__init__", lambda self, *a, **k: (made(self, *a, **k), alive.add(self))[0])
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in (packed, apart)]
    probe = token_documents([20], seed=99)[0][None]
    for number in range(STEPS):
        documents = token_documents(draw(dice), seed=number)
        tokens = sum(len(d) for d in documents)
        step(optimizers[0], summed_loss(log_probs(packed.train(), **packed_row(documents)), documents) / tokens)
        losses = [summed_loss(log_probs(apart.train(), input_ids=d[None]), [d]) for d in documents]
        step(optimizers[1], sum(losses) / tokens)
        if number % 10 == 9:
            with torch.no_grad():
                pair = [model.eval()(input_ids=probe).logits.log_softmax(-1) for model in (packed, apart)]
                assert (pair[0] - pair[1]).abs().max() <= 1e-3
                assert torch.equal(*(m.generate(probe, max_new_tokens=3, do_sample=False) for m in (packed, apart)))
    gc.collect()
    assert runtime_of(packed).packed_forwards == STEPS
    assert hooks(packed) == before
    assert len(dispatch._wrapped) == points
    assert len(alive) <= 1
    assert current() is None
    patcher.uninstall()
