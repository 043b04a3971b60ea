"""What the hooks leave behind: nothing, whatever happens inside."""

import copy
import io
import threading

import pytest
import torch

from replacements.packing import dispatch
from replacements.packing.boundaries import BoundaryError
from replacements.packing.current import current
from replacements.packing.handshake import HandshakeError
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


class Outer(torch.nn.Module):
    """A wrapper that names nothing, and may find the positions itself."""

    def __init__(self, model, positions=None):
        super().__init__()
        self.model, self.positions, self.config = model, positions, model.config

    def forward(self, *args, **kwargs):
        if self.positions is not None:
            kwargs["position_ids"] = self.positions
        return self.model(*args, **kwargs)


@pytest.mark.parametrize("within", [False, True], ids=["placed", "found within"])
def test_boundaries_that_only_the_inner_door_can_see(model, within):
    outer = Outer(model, ROW["position_ids"] if within else None)
    arguments = (ROW["input_ids"],) if within else (ROW["input_ids"], None, ROW["position_ids"])
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
        attach(outer)
        assert (outer(*arguments).logits[0].log_softmax(-1) - apart).abs().max() <= 1e-4


def test_a_prepared_mask_that_joins_documents_is_refused(model):
    attach(model)
    causal = torch.ones(1, 1, 33, 33, dtype=torch.bool).tril()
    with pytest.raises(BoundaryError, match="block-diagonal"):
        log_probs(model, **ROW, attention_mask=causal)


def test_a_prepared_mask_that_keeps_documents_apart_is_used(model):
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
        attach(model)
        document = ROW["seq_idx"][0]
        mask = (document[:, None] == document[None, :]).tril()[None, None]
        assert (log_probs(model, **ROW, attention_mask=mask) - apart).abs().max() <= 1e-4


def test_kernels_put_back_after_the_first_step_are_noticed(model):
    attach(model)
    with torch.no_grad():
        log_probs(model, **ROW)
        dispatch.unwrap_all()
        with pytest.raises(HandshakeError):
            log_probs(model, **ROW)


def test_a_copy_goes_when_everything_is_taken_back(model):
    attach(model)
    copied = copy.deepcopy(model)
    detach_all()
    assert runtime_of(copied) is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in copied.modules())


def test_a_loaded_model_reaches_its_kernels_again(model):
    attach(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    with torch.no_grad():
        expected = log_probs(model, **ROW)
        detach_all()
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        assert torch.equal(log_probs(loaded, **ROW), expected)


def test_another_model_inside_a_packed_forward_runs_as_stock(model):
    """A teacher that nobody attached, of the same family and on a row of the same shape."""
    teacher, seen = tiny_model("qwen3_5", seed=1), []
    with torch.no_grad():
        expected = teacher(input_ids=ROW["input_ids"], use_cache=False).logits
        apart = log_probs_apart(model, DOCUMENTS)
        attach(model)
        model.model.layers[1].register_forward_pre_hook(
            lambda *_: seen.append(teacher(input_ids=ROW["input_ids"], use_cache=False).logits)
        )
        packed = log_probs(model, **ROW)
    assert torch.equal(seen[0], expected)
    assert (packed - apart).abs().max() <= 1e-4


def test_a_mixer_called_past_its_hooks_is_noticed(model):
    attach(model)
    layer = model.model.layers[0].linear_attn
    model.model.layers[0].linear_attn = torch.nn.Identity()
    model.model.layers[0].linear_attn.forward = layer.forward
    with pytest.raises(HandshakeError, match=r"layers\.0"):
        log_probs(model, **ROW)


def test_data_parallel_copies_are_refused(model):
    attach(model)
    model._is_replica = True
    with pytest.raises(BoundaryError, match="DataParallel"):
        log_probs(model, **ROW)
