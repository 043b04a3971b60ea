"""Gradient checkpointing: a layer is recomputed with the boundaries of its own forward."""

import pytest
import torch

from replacements.packing import dispatch, runtime
from replacements.packing.boundaries import BoundaryError
from replacements.packing.recompute import BoundCheckpoint
from replacements.packing.runtime import attach
from tests.support.models import gradients, log_probs, packed_row, relative_error, tiny_model, token_documents

FIRST = packed_row(token_documents([30, 1, 41], seed=1))
SECOND = packed_row(token_documents([12, 60], seed=2))
PLAIN = {"input_ids": token_documents([50], seed=3)[0][None]}


@pytest.fixture(params=["qwen3_next", "qwen3_5"])
def model(request):
    yield tiny_model(request.param)
    dispatch.unwrap_all()


def loss(model, row):
    return log_probs(model, **row).square().mean()


def checkpointed(model, reentrant):
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    if reentrant:
        model.enable_input_require_grads()


@pytest.fixture(params=[True, False], ids=["reentrant", "non-reentrant"])
def reentrant(request):
    return request.param


def test_gradients_equal_those_without_checkpointing(model, reentrant):
    attach(model)
    loss(model, FIRST).backward()
    expected = gradients(model)
    checkpointed(model, reentrant)
    loss(model, FIRST).backward()
    assert relative_error(gradients(model), expected) <= 1e-5


def test_two_forwards_pending_before_one_backward(model, reentrant):
    attach(model)
    (loss(model, FIRST) + 2 * loss(model, SECOND)).backward()
    expected = gradients(model)
    checkpointed(model, reentrant)
    (loss(model, FIRST) + 2 * loss(model, SECOND)).backward()
    assert relative_error(gradients(model), expected) <= 1e-5


def test_a_plain_forward_between_forward_and_backward(model, reentrant):
    attach(model)
    (loss(model, FIRST) + loss(model, PLAIN)).backward()
    expected = gradients(model)
    checkpointed(model, reentrant)
    packed = loss(model, FIRST)
    plain = loss(model, PLAIN)
    (packed + plain).backward()
    assert relative_error(gradients(model), expected) <= 1e-5


def test_checkpointing_switched_on_after_attaching_is_bound(model):
    runtime = attach(model)
    checkpointed(model, reentrant=False)
    layer = runtime.backbone.layers[0]
    original = layer._gradient_checkpointing_func
    loss(model, FIRST)
    assert isinstance(layer._gradient_checkpointing_func, BoundCheckpoint)
    runtime.detach()
    assert layer._gradient_checkpointing_func is original


def test_recomputation_in_another_thread_sees_its_boundaries(model):
    """On CUDA the autograd engine recomputes in a thread of its own, which inherits no context."""
    import threading

    attach(model)
    loss(model, FIRST).backward()
    expected = gradients(model)
    checkpointed(model, reentrant=False)
    pending = loss(model, FIRST)
    worker = threading.Thread(target=pending.backward)
    worker.start()
    worker.join()
    assert relative_error(gradients(model), expected) <= 1e-5


@pytest.mark.parametrize("form", ["REENTRANT", "NO_REENTRANT"])
def test_checkpoints_that_torch_put_around_the_layers(model, form):
    """What FSDP's activation checkpointing does, after the runtime was attached."""
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrapping

    attach(model)
    (loss(model, FIRST) + 2 * loss(model, SECOND)).backward()
    expected = gradients(model)
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = wrapping.checkpoint_wrapper(layer, wrapping.CheckpointImpl[form])
    if form == "REENTRANT":
        model.enable_input_require_grads()
    (loss(model, FIRST) + 2 * loss(model, SECOND)).backward()
    got = {name.replace("_checkpoint_wrapped_module.", ""): g for name, g in gradients(model).items()}
    assert relative_error(got, expected) <= 1e-5


def test_a_recomputation_without_boundaries_stops(model):
    from torch.utils.checkpoint import checkpoint

    attach(model)
    loss(model, FIRST)
    layer = model.model.layers[0]
    forward = layer.forward
    layer.forward = lambda hidden, **kw: checkpoint(lambda h: forward(h, **kw), hidden, use_reentrant=False)
    model.train()
    with pytest.raises(BoundaryError, match="gradient_checkpointing=True"):
        loss(model, FIRST).backward()


def test_only_the_outermost_forward_that_can_recompute_looks_for_checkpoints(model, monkeypatch):
    looks = []
    monkeypatch.setattr(runtime, "bind_checkpoints", looks.append)
    attach(model)
    with torch.no_grad():
        model(**FIRST)
    assert not looks
    model(**FIRST)
    assert len(looks) == 1
