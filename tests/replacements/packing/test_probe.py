"""The probe sees leaks, whatever causes them, takes no rounding for one, and leaves no trace."""

import random

import numpy as np
import peft
import pytest
import torch
import transformers
from torch import nn

from replacements.packing import dispatch
from replacements.packing.measuring import TWO
from replacements.packing.probe import Probe, probe
from replacements.packing.runtime import Runtime, attach
from tests.support.models import redraw, tiny_model
from tests.support.situations import tiny_llama, with_convolution, with_recurrence


@pytest.fixture(autouse=True)
def _unwrapped():
    dispatch.unwrap_all()
    yield
    dispatch.unwrap_all()


def probed(model):
    runtime = attach(model)
    try:
        return probe(model)
    finally:
        runtime.detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "lfm2_moe", "falcon_h1"])
def test_rounding_is_no_leak(family, dtype):
    seen = probed(tiny_model(family, dtype=dtype))
    assert seen.isolated, seen
    assert seen.neighbour == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_alone(dtype):
    assert probed(tiny_llama().to(dtype)).isolated


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("leak", [with_recurrence, with_convolution])
def test_an_unnamed_leak(leak, dtype):
    seen = probed(leak(tiny_llama()).to(dtype))
    assert not seen.neighbour_isolated
    assert not seen.apart_agrees


@pytest.mark.parametrize("leak", [with_recurrence, with_convolution])
def test_a_leak_of_freshly_initialised_weights(leak):
    """Drawn at 0.02 a model hardly looks at its context, and what leaks is as small."""
    model = transformers.LlamaForCausalLM(tiny_llama().config).eval()
    assert not probed(leak(model)).isolated


def test_attention_that_is_blind_to_documents():
    model = tiny_llama()
    model.model.register_forward_pre_hook(_one_document, with_kwargs=True)
    assert not probed(model).neighbour_isolated


def _one_document(module, args, kwargs):
    length = kwargs["input_ids"].shape[1]
    return args, {**kwargs, "position_ids": torch.arange(length)[None]}


def test_attention_that_looks_ahead():
    """Both ways: the first document moves with the second, so that its movement is no measure of rounding."""
    model = tiny_llama()
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.model.register_forward_pre_hook(_everything_visible, with_kwargs=True)
    assert not probed(model).isolated


def _everything_visible(module, args, kwargs):
    length = kwargs["input_ids"].shape[1]
    return args, {**kwargs, "attention_mask": torch.ones(1, 1, length, length, dtype=torch.bool)}


def test_learned_positions_that_go_on_across_documents():
    """Nothing of the neighbour leaks, and still the packed row is not the documents alone."""
    config = transformers.GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=256)
    model = redraw(transformers.GPT2LMHeadModel(config))
    assert probed(model).isolated
    model.transformer.wpe.register_forward_pre_hook(lambda _, args: (torch.arange(args[0].shape[1])[None],))
    seen = probed(model)
    assert seen.neighbour_isolated
    assert not seen.apart_agrees


@pytest.mark.parametrize("op", ["causal_conv1d", "gated_delta_rule"])
def test_each_op_left_at_stock_is_a_leak(op):
    model = tiny_model("qwen3_5")
    runtime = Runtime(model)
    runtime.checks, runtime._wrapped = False, True  # not all points, as it would at the first forward
    dispatch.wrap([point for point in dispatch.points_of(runtime.mixers) if op not in point.ops])
    assert not probe(model).neighbour_isolated


def test_documents_cross_a_chunk_edge():
    assert TWO[0] < 64 < sum(TWO)
    assert TWO[1] < 32 < TWO[0]


class Restless(nn.Module):
    """Changes what a forward can change: buffers in place and by name, every random state."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, *args, **kwargs):
        self.calls += 1
        random.random()
        np.random.rand()
        torch.rand(1)
        return self.inner(*args, **kwargs)


def test_everything_is_as_before():
    model = tiny_llama()
    model.model.layers[0].mlp = Restless(model.model.layers[0].mlp)
    model.train()
    model.model.layers[1].eval()
    modes = [module.training for module in model.modules()]
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    expected = random.random(), np.random.rand(), torch.rand(1)
    random.seed(1)
    np.random.seed(2)
    torch.manual_seed(3)
    probed(model)
    assert (random.random(), np.random.rand(), torch.rand(1)) == expected
    assert [module.training for module in model.modules()] == modes
    assert model.model.layers[0].mlp.calls == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.is_grad_enabled()


def test_everything_is_as_before_after_a_failure():
    model = tiny_llama().train()
    model.lm_head.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("stop")))
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    with pytest.raises(RuntimeError, match="stop"):
        probed(model)
    assert torch.rand(1) == expected
    assert model.training
    assert torch.is_grad_enabled()


def test_dropout_does_not_disturb():
    model = tiny_model("qwen3_5", attention_dropout=0.5).train()
    assert probed(model).isolated


def test_a_model_wrapped_by_peft():
    model = peft.get_peft_model(tiny_model("qwen3_5"), peft.LoraConfig(target_modules=["q_proj", "out_proj"]))
    assert probed(model).isolated


def test_skipped_on_the_meta_device():
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(tiny_llama().config)
    assert "meta" in probe(model).skipped
    assert probe(model).isolated


@pytest.mark.parametrize(
    ("attribute", "word"), [("ds_id", "ZeRO-3"), ("device_mesh", "sharded"), ("quant_state", "4-bit")]
)
def test_skipped_on_weights_that_are_not_whole_or_would_not_stay_so(attribute, word):
    model = tiny_llama()
    setattr(next(model.parameters()), attribute, 1)
    assert word in probe(model).skipped


def rows_of(model):
    """The token ids of every forward of a probe."""
    rows = []
    model.register_forward_pre_hook(lambda _, args, kwargs: rows.append(kwargs["input_ids"]), with_kwargs=True)
    probed(model)
    return rows


def test_no_token_with_a_meaning():
    """Documents hold no token that ends, pads or stands for an image."""
    model = tiny_llama(eos_token_id=[5, 6], bos_token_id=7)
    model.config.image_token_id = 9
    seen = set()
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.update(kwargs["input_ids"].unique().tolist()), with_kwargs=True
    )
    probed(model)
    assert len(seen) > 40
    assert not seen & {0, 5, 6, 7, 9}


def test_forwards_are_few():
    model, tokens = tiny_model("qwen3_5"), []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: tokens.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    probed(model)
    assert tokens == [68, 68, 31]


@pytest.mark.parametrize(
    ("seen", "isolated"),
    [
        (Probe(scale=5, epsilon=1e-7), True),
        (Probe(neighbour=3e-6, scale=5, epsilon=1e-7), False),
        (Probe(neighbour=3e-6, control=1e-6, scale=5, epsilon=1e-7), True),
        (Probe(neighbour=1.0, control=1.0, scale=5, epsilon=1e-7), False),
        (Probe(apart=1e-3, noise=1e-5, scale=5, epsilon=1e-7), False),
        (Probe(apart=1e-3, noise=5e-4, scale=5, epsilon=1e-7), True),
        (Probe(apart=2.0, noise=2.0, scale=5, epsilon=1e-7), False),
        (Probe(apart=1e-2, noise=0.0, scale=5, epsilon=2**-7), True),
        (Probe(neighbour=float("inf"), control=float("inf")), False),
        (Probe(apart=float("inf"), noise=float("inf")), False),
    ],
)
def test_what_is_a_leak(seen, isolated):
    assert seen.isolated is isolated
