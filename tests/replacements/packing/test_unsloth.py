"""Under Unsloth: one of the two gives mixers their boundaries, and what was set aside is put back."""

import types

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from replacements.packing import unsloth
from replacements.packing.runtime import attach
from tests.support.models import log_probs, log_probs_apart, packed_row, tiny_model, token_documents

DOCUMENTS = token_documents([23, 1, 70, 12])


class Shim:
    """Keeps the boundaries of a forward on the mixers and demands once that they were used, as Unsloth's does."""

    def __init__(self, model, mixers):
        self.model, self.mixers, self.given = model, mixers, 0
        model._unsloth_varlen_forward_wrapped = True
        inner, model.forward = model.forward, self.forward
        self.inner = inner
        for mixer in mixers:
            mixer._unsloth_varlen, mixer._unsloth_varlen_wrapped = None, True
            mixer.forward = self.wrapped(mixer, mixer.forward)

    def wrapped(self, mixer, inner):
        def forward(*args, **kwargs):
            self.given += mixer._unsloth_varlen is not None
            return inner(*args, **kwargs)

        return forward

    def forward(self, *args, **kwargs):
        for mixer in self.mixers:
            mixer._unsloth_varlen = kwargs["position_ids"]
        first = not getattr(self.model, "_unsloth_varlen_handshake_done", False)
        out = self.inner(*args, **kwargs)
        if first and not self.given:
            raise RuntimeError("kernels not dispatched")
        return out


@pytest.fixture
def model():
    return tiny_model("qwen3_5")


@pytest.fixture
def shim(model):
    runtime = attach(model)
    yield Shim(model, list(runtime.mixers))
    runtime.detach()


@torch.no_grad()
def test_standing_by_it_gives_no_mixer_anything(model, shim):
    handles = unsloth.stand_by(model)
    packed = log_probs(model, **packed_row(DOCUMENTS))
    assert shim.given == 0
    for handle in handles:
        handle.remove()
    assert "_unsloth_varlen_handshake_done" not in vars(model)
    assert (packed - log_probs_apart(tiny_model("qwen3_5"), DOCUMENTS)).abs().max() <= 1e-4
    log_probs(model, **packed_row(DOCUMENTS))
    assert shim.given == len(shim.mixers)


@torch.no_grad()
def test_without_boundaries_of_ours_it_goes_on(model, shim):
    """A row of one document is nothing to us, whatever Unsloth makes of it."""
    unsloth.stand_by(model)
    log_probs(model, **packed_row(DOCUMENTS[:1]))
    assert shim.given == len(shim.mixers)


def test_a_flag_that_was_set_is_put_back(model, shim):
    model._unsloth_varlen_handshake_done = False
    for handle in unsloth.stand_by(model):
        handle.remove()
    assert model._unsloth_varlen_handshake_done is False


def test_attention_alone_is_left_to_unsloth():
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    dense = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_hidden_layers=1, **shape))
    trainer, args = types.SimpleNamespace(), types.SimpleNamespace(packing=True, padding_free=True)
    assert unsloth.choose(trainer, model=dense, args=args) is args
    assert trainer._patcher_verdict.action == "leave"


def test_a_model_that_is_named_is_the_guards_to_judge(monkeypatch):
    seen = []
    monkeypatch.setattr(unsloth.guard, "choose", lambda trainer, **situation: seen.append(situation["model"]))
    unsloth.choose(types.SimpleNamespace(), model="a/name", args=None)
    assert seen == ["a/name"]


def test_what_stands_by_while_choosing_is_put_back_when_that_fails(model, shim, monkeypatch):
    def refuse(trainer, **situation):
        assert model._unsloth_varlen_handshake_done
        raise ValueError("refused")

    monkeypatch.setattr(unsloth.guard, "choose", refuse)
    with pytest.raises(ValueError, match="refused"):
        unsloth.choose(types.SimpleNamespace(), model=model, args=None)
    assert "_unsloth_varlen_handshake_done" not in vars(model)
