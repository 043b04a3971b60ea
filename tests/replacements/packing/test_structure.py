"""What a model is made of: known mixers, recurrences that nobody taught us, the module that holds the layers."""

import peft
import pytest
import torch
from torch import nn

from replacements.packing.structure import Anatomy, carries_state, find_backbone
from tests.support.models import tiny_model
from tests.support.situations import tiny_llama


@pytest.mark.parametrize(
    "family", ["qwen3_next", "qwen3_5_moe", "mamba", "mamba2", "bamba", "jamba", "zamba2", "lfm2", "recurrent_gemma"]
)
def test_a_family_of_the_table(family):
    anatomy = Anatomy.of(tiny_model(family))
    assert anatomy.mixers
    assert not anatomy.unknown
    assert set(anatomy.mixers) <= set(anatomy.backbone.modules())


def test_attention_alone():
    model = tiny_llama()
    anatomy = Anatomy.of(model)
    assert not anatomy.mixers
    assert not anatomy.unknown
    assert anatomy.backbone is model.model


def test_the_backbone_inside_a_peft_wrapper():
    model = tiny_llama()
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"]))
    assert find_backbone(wrapped, []) is model.model


def with_part(part, name="extra"):
    model = tiny_llama()
    setattr(model.model.layers[0], name, part)
    return model


class Decays(nn.Module):
    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(4))


class Convolves(nn.Module):
    def __init__(self, groups):
        super().__init__()
        self.conv = nn.Conv1d(8, 8, 4, groups=groups)


@pytest.mark.parametrize(
    "part",
    [
        nn.LSTM(8, 8),
        nn.GRU(8, 8),
        Decays(),
        Convolves(groups=8),
        type("AcmeMambaMixer", (nn.Module,), {})(),
        type("FancyRetention", (nn.Module,), {})(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_recurrence_in_no_row_of_the_table(part):
    assert list(Anatomy.of(with_part(part)).unknown) == ["layers.0.extra"]


@pytest.mark.parametrize(
    "part",
    [
        nn.Linear(8, 8),
        nn.Conv1d(8, 8, 1),
        Convolves(groups=1),
        type("MambaRMSNorm", (nn.Module,), {})(),
        type("RecurrentCache", (nn.Module,), {})(),
    ],
    ids=lambda part: type(part).__name__,
)
def test_parts_that_carry_nothing(part):
    assert not Anatomy.of(with_part(part)).unknown


def test_the_outermost_part_is_named():
    outer = type("AcmeMambaBlockMixer", (nn.Module,), {})()
    outer.scan = Decays()
    assert list(Anatomy.of(with_part(outer)).unknown) == ["layers.0.extra"]


def test_a_word_of_the_models_own_name_says_nothing_of_a_part():
    part = type("AcmeLinearAttention", (nn.Module,), {})()
    assert carries_state(part)
    assert not carries_state(part, prefix="AcmeLinear")
