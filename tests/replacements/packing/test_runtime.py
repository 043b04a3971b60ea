"""What the hooks leave behind: nothing, whatever happens inside."""

import copy
import threading

import pytest
import torch

from replacements.packing import dispatch
from replacements.packing.boundaries import BoundaryError
from replacements.packing.current import current
from replacements.packing.runtime import attach, detach_all, runtime_of
from tests.support.models import log_probs, log_probs_apart, packed_row, tiny_model, token_documents

DOCUMENTS = token_documents([12, 1, 20])
ROW = packed_row(DOCUMENTS)


@pytest.fixture
def model():
    yield tiny_model("qwen3_5")
    detach_all()


def interrupted(model, error):
    """Makes the model's last layer raise, deep inside a packed forward."""

    def raising(*_):
        raise error

    return model.model.layers[-1].register_forward_pre_hook(raising)


@pytest.mark.parametrize("error", [RuntimeError("inside"), KeyboardInterrupt(), SystemExit()])
def test_an_interrupted_forward_leaves_no_boundaries(model, error):
    plain = {"input_ids": token_documents([30])[0][None]}
    with torch.no_grad():
        expected = model(**plain).logits
        attach(model)
        handle = interrupted(model, error)
        with pytest.raises(type(error)):
            model(**{k: v for k, v in ROW.items() if k != "labels"})
        handle.remove()
        assert current() is None
        assert torch.equal(model(**plain).logits, expected)


def test_another_model_after_an_interrupt_runs_as_stock(model):
    other = tiny_model("qwen3_5", seed=1)
    plain = {"input_ids": ROW["input_ids"]}
    with torch.no_grad():
        expected = other(**plain).logits
        attach(model)
        interrupted(model, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            log_probs(model, **ROW)
        assert torch.equal(other(**plain).logits, expected)


def test_a_teacher_inside_the_forward_of_a_student(model):
    """Two attached models, one run from within the other, each with its own documents."""
    teacher, documents = tiny_model("qwen3_next", seed=1), token_documents([7, 9], seed=5)
    seen = []
    with torch.no_grad():
        apart, teacher_apart = log_probs_apart(model, DOCUMENTS), log_probs_apart(teacher, documents)
        attach(model)
        attach(teacher)
        hook = lambda *_: seen.append(log_probs(teacher, **packed_row(documents)))  # noqa: E731
        model.model.layers[1].register_forward_pre_hook(hook)
        packed = log_probs(model, **ROW)
    assert (packed - apart).abs().max() <= 1e-4
    assert (seen[0] - teacher_apart).abs().max() <= 1e-4


def test_two_threads_with_their_own_rows(model):
    other = tiny_model("qwen3_next", seed=1)
    jobs = [(model, DOCUMENTS), (other, token_documents([9, 30, 4], seed=8))]
    with torch.no_grad():
        expected = [log_probs_apart(m, d) for m, d in jobs]
    errors = []

    def run(m, documents, apart):
        with torch.no_grad():
            for _ in range(5):
                errors.append(float((log_probs(m, **packed_row(documents)) - apart).abs().max()))

    for m, _ in jobs:
        attach(m)
    threads = [threading.Thread(target=run, args=(*job, e)) for job, e in zip(jobs, expected, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 10
    assert max(errors) <= 1e-4


def test_the_backbone_called_directly_meets_its_hook(model):
    """Losses that skip the outer forward call the backbone."""
    attach(model)
    with torch.no_grad():
        outer = model(**{k: v for k, v in ROW.items() if k != "labels"}).logits
        inner = model.lm_head(model.model(**{k: v for k, v in ROW.items() if k != "labels"}).last_hidden_state)
    assert torch.equal(outer, inner)


def test_positional_arguments_are_read_too(model):
    attach(model)
    with torch.no_grad():
        named = model(input_ids=ROW["input_ids"], attention_mask=None, position_ids=ROW["position_ids"]).logits
        placed = model(ROW["input_ids"], None, ROW["position_ids"]).logits
    assert torch.equal(named, placed)


def test_an_all_ones_mask_does_not_join_documents(model):
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
        attach(model)
        packed = log_probs(model, **ROW, attention_mask=torch.ones_like(ROW["input_ids"]))
    assert (packed - apart).abs().max() <= 1e-4


def test_positions_that_run_on_are_replaced(model):
    """`seq_idx` is explicit: attention follows it too, whatever the positions say."""
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
        attach(model)
        row = {**ROW, "position_ids": torch.arange(33)[None]}
        assert (log_probs(model, **row) - apart).abs().max() <= 1e-4


def test_a_mask_that_hides_the_start_of_a_document_is_refused(model):
    attach(model)
    mask = torch.ones_like(ROW["input_ids"])
    mask[0, 13] = 0
    with pytest.raises(BoundaryError, match="Pad packed rows on the right"):
        log_probs(model, **ROW, attention_mask=mask)
    assert current() is None


def test_a_cache_with_a_packed_row_is_refused(model):
    from transformers import DynamicCache

    attach(model)
    with pytest.raises(BoundaryError, match="cache"):
        model(**{k: v for k, v in ROW.items() if k != "labels"}, past_key_values=DynamicCache(config=model.config))


def test_a_copied_model_has_a_runtime_of_its_own(model):
    attach(model)
    copied = copy.deepcopy(model)
    assert runtime_of(copied).model is copied
    assert runtime_of(model).model is model
    with torch.no_grad():
        assert torch.equal(log_probs(copied, **ROW), log_probs(model, **ROW))
    assert runtime_of(copied).packed_forwards == 1


def test_detaching_leaves_the_model_and_its_module_as_they_were():
    model = tiny_model("qwen3_5")
    module = __import__(type(model).__module__, fromlist=["x"])
    kernels = {name: getattr(module, name) for name in ("causal_conv1d_fn", "torch_chunk_gated_delta_rule")}
    hooks = {name: (len(m._forward_pre_hooks), len(m._forward_hooks)) for name, m in model.named_modules()}
    attach(model)
    assert any(getattr(module, name) is not kernel for name, kernel in kernels.items())
    detach_all()
    assert all(getattr(module, name) is kernel for name, kernel in kernels.items())
    assert hooks == {n: (len(m._forward_pre_hooks), len(m._forward_hooks)) for n, m in model.named_modules()}
    assert runtime_of(model) is None


def test_attaching_twice_is_attaching_once(model):
    runtime = attach(model)
    points = dict(dispatch._wrapped)
    assert attach(model) is runtime
    assert dispatch._wrapped == points
