"""A model spread over devices by accelerate's hooks, as `device_map` does it; meta stands in for the second one."""

import contextlib

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module

import patcher
from replacements.kernels import chunking, segments
from replacements.kernels.causal_conv1d import taps
from replacements.packing.runtime import runtime_of
from tests.support.models import packed_row, tiny_model, token_documents

ROW = packed_row(token_documents([30, 1, 41]))
del ROW["labels"]


@pytest.fixture(autouse=True)
def _meta_has_no_autocast(monkeypatch):
    """Unlike the devices that it stands in for."""
    autocast = torch.autocast
    never = contextlib.nullcontext()
    monkeypatch.setattr(torch, "autocast", lambda kind, *a, **k: never if kind == "meta" else autocast(kind, *a, **k))
    yield
    patcher.uninstall()


def spread(model):
    """The second half of a model on the other device."""
    layers = model.model.layers
    last = getattr(model.model, "norm", None) or model.model.embedding_norm
    for module in (*layers[len(layers) // 2 :], last, model.lm_head):
        add_hook_to_module(module.to("meta"), AlignDevicesHook(execution_device="meta"))
    return model


@pytest.mark.parametrize(("family", "kind"), [("qwen3_5", "linear_attention"), ("lfm2", "conv")])
def test_the_documents_are_moved_once_to_each_device(family, kind, monkeypatch):
    model = patcher.pack(tiny_model(family, layer_types=[kind] * 4, num_hidden_layers=4))
    moved = []

    def counted(array, device, move=chunking.to_device):
        moved.append(torch.device(device).type)
        return move(array, device)

    for module in (chunking, segments, taps):
        monkeypatch.setattr(module, "to_device", counted)
    assert model(**ROW).logits.device.type == "cpu"
    on_one_device = len(moved)
    moved.clear()
    runtime_of(model).packed_forwards = 0
    assert spread(model)(**ROW).logits.device.type == "meta"
    assert runtime_of(model).packed_forwards == 1
    assert moved.count("cpu") == on_one_device
    assert 0 < moved.count("meta") <= on_one_device  # what attention goes by is not moved again
