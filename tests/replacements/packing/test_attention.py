"""Attention of every kind goes by what the probe sees of it."""

import copy

import pytest
import torch
import transformers

from replacements.packing import dispatch
from replacements.packing.guard import judge
from replacements.packing.probe import probe
from replacements.packing.runtime import attach
from replacements.packing.verdict import PACK, Reason
from tests.support.models import log_probs, log_probs_apart, packed_row, redraw, tiny_model, token_documents
from tests.support.situations import situation, tiny_llama

DOCUMENTS = token_documents([23, 1, 70, 5, 40])
SMALL = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


def softcapped(**changes):
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(**SMALL, query_pre_attn_scalar=8, sliding_window=16, **changes)
    )


FEW_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def sinks(**changes):
    config = transformers.GptOssConfig(**SMALL, **FEW_EXPERTS, sliding_window=16, **changes)
    return transformers.GptOssForCausalLM(config)


def experts(**changes):
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**SMALL, **FEW_EXPERTS, **changes))


def plain(**changes):
    return tiny_llama(**changes)


MODELS = {"plain": plain, "softcapped and sliding": softcapped, "sinks": sinks, "experts": experts}


@pytest.fixture(autouse=True)
def _unwrapped():
    yield
    dispatch.unwrap_all()


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_verdict_is_what_attention_does(make, implementation):
    """Some releases build the mask of a model without its positions, so that it does not keep documents apart."""
    try:
        model = redraw(make(attn_implementation=implementation))
    except ValueError as error:
        pytest.skip(str(error))
    made = judge(situation(model))
    with torch.no_grad():
        expected = log_probs_apart(model, DOCUMENTS)
        attach(model)
        packed = log_probs(model, **packed_row(DOCUMENTS))
    apart = float((packed - expected).abs().max())
    assert (made == PACK, made.reason is Reason.LEAK) == ((True, False) if apart <= 1e-4 else (False, True))
    if make is not sinks:
        assert made == PACK


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_hybrid_with_either_attention(implementation):
    assert judge(situation(tiny_model("qwen3_5", attn_implementation=implementation))) == PACK


def test_attention_that_loses_the_mask_is_a_leak(monkeypatch):
    """An implementation that a library registered, and that knows only of causality."""

    def causal(module, query, key, value, attention_mask, **_):
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return out.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("causal-only", causal)
    model = tiny_llama(attn_implementation="causal-only")
    assert judge(situation(model)).reason is Reason.LEAK


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention():
    model = tiny_llama()
    with torch.compiler.set_stance("force_eager"):  # the same attention, without minutes of compilation
        try:
            model.set_attn_implementation("flex_attention")
        except ImportError as error:  # this torch is older than the flex attention of this transformers
            pytest.skip(str(error))
        attach(model)
        assert probe(model).isolated


def test_experts_are_no_noise():
    """Tokens of both documents go through the same experts, in groups whose sizes differ."""
    model = redraw(experts())
    for dtype in (torch.float32, torch.bfloat16):
        copied = copy.deepcopy(model).to(dtype)
        attach(copied)
        assert probe(copied).isolated
