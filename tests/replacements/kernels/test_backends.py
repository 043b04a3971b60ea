"""The choice of kernels: used only with boundaries, only after agreeing, in the layout each wants."""

import functools
import logging
import sys

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from replacements.kernels import backends
from replacements.kernels.backends import samples, table
from replacements.kernels.segments import Segments
from replacements.packing.runtime import attach, detach_all
from tests.support import fake_kernels
from tests.support.fake_kernels import PLACES, provide
from tests.support.kernels import assert_same, gradients
from tests.support.models import log_probs, log_probs_apart, packed_row, tiny_model, token_documents

SEGMENTS = Segments([5, 1, 1, 9, 40, 8])
IN_ROWS = Segments([5, 27, 1, 31, 32], rows=3)
BACKENDS = {backend.name: backend for backend in table.BACKENDS}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No outcome from another test; CPU tensors stand in for a card's."""
    backends.reset()
    monkeypatch.setattr(table, "NEVER_ON", frozenset())
    fake_kernels.calls.clear()
    yield
    backends.reset()


def call_of(op, segments=SEGMENTS, dtype=torch.float32):
    """Random arguments of an op for a row, and their widths."""
    small = samples.like(op, samples.typical(op, torch.device("cpu"), dtype))
    shape = (segments.rows, segments.total // segments.rows)
    return {name: _in_rows(samples.ARGUMENTS[op].get(name), value, shape) for name, value in small.items()}


def _in_rows(argument, value, shape):
    if not isinstance(value, torch.Tensor) or argument.time is None:
        return value
    row = value.narrow(argument.time, 0, shape[0] * shape[1])
    if argument.time == 1:
        return row.reshape(*shape, *row.shape[2:])
    return row[0].reshape(-1, *shape).transpose(0, 1).contiguous()


def forward_backward(function, call):
    given = {n: x.clone().requires_grad_() if isinstance(x, torch.Tensor) else x for n, x in call.items()}
    out = function(given)
    return [out, *gradients(out, [x for x in given.values() if isinstance(x, torch.Tensor)])]


@pytest.mark.parametrize("segments", [SEGMENTS, IN_ROWS], ids=["one row", "three rows"])
@pytest.mark.parametrize("name", PLACES)
def test_each_kernel_is_given_the_boundaries_in_its_layout(name, segments, monkeypatch):
    provide(monkeypatch, name)
    op = BACKENDS[name].op
    call = call_of(op, segments)
    got = forward_backward(lambda given: backends.run(op, given, segments), call)
    wanted = forward_backward(lambda given: table.OPS[op](**given, segments=segments), call)
    assert len(fake_kernels.calls) == 3  # a row of this size, the one that is compared, the call
    for ours, theirs in zip(got, wanted, strict=True):
        assert_same(ours, theirs, 1e-5)


def without_boundaries(name):
    kernel, boundary = PLACES[name][1], BACKENDS[name].boundary

    @functools.wraps(kernel)
    def leaks(*args, **kwargs):
        return kernel(*args, **{**kwargs, boundary: None})

    return leaks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_a_kernel_that_leaks_is_not_used(name, dtype, monkeypatch, caplog):
    provide(monkeypatch, name, without_boundaries(name))
    op = BACKENDS[name].op
    call = call_of(op, dtype=dtype)
    with caplog.at_level(logging.WARNING, "patcher"):
        out = backends.run(op, call, SEGMENTS)
        backends.run(op, call, SEGMENTS)
    assert torch.equal(out, table.OPS[op](**call, segments=SEGMENTS))
    assert len(fake_kernels.calls) == 2
    (record,) = caplog.records
    assert name in record.getMessage()
    assert "differs from the torch operation's" in record.getMessage()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PLACES)
def test_rounding_is_no_disagreement(name, dtype, monkeypatch):
    provide(monkeypatch, name)
    op = BACKENDS[name].op
    assert backends.accelerated(op, call_of(op, dtype=dtype), SEGMENTS) is not None


class _RefusesBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("install tilelang")


def test_a_kernel_that_works_forward_alone_is_not_used(monkeypatch, caplog):
    def refuses(*args, cu_seqlens=None, **kwargs):
        out, _ = fake_kernels.chunk_gated_delta_rule(*args, cu_seqlens=cu_seqlens, **kwargs)
        return _RefusesBackward.apply(out), None

    provide(monkeypatch, "fla: chunk_gated_delta_rule", refuses)
    with caplog.at_level(logging.WARNING, "patcher"):
        assert backends.accelerated("gated_delta_rule", call_of("gated_delta_rule"), SEGMENTS) is None
    assert "install tilelang" in caplog.text


def test_a_kernel_without_gradient_of_one_argument_is_not_used(monkeypatch):
    def detached(q, k, v, g, beta, cu_seqlens=None, **kwargs):
        return fake_kernels.chunk_gated_delta_rule(q, k, v, g * 0 + g.detach(), beta, cu_seqlens=cu_seqlens, **kwargs)

    provide(monkeypatch, "fla: chunk_gated_delta_rule", detached)
    assert backends.accelerated("gated_delta_rule", call_of("gated_delta_rule"), SEGMENTS) is None


def test_a_kernel_that_takes_no_boundaries_is_not_called(monkeypatch, caplog):
    provide(monkeypatch, "mamba_ssm: selective_scan_fn", lambda u, delta, A, B, C, **rest: pytest.fail("called"))
    with caplog.at_level(logging.WARNING, "patcher"):
        assert backends.accelerated("selective_scan", call_of("selective_scan"), SEGMENTS) is None
    assert "takes no `cu_seqlens`" in caplog.text


def test_what_is_not_installed_is_not_spoken_of(caplog):
    with caplog.at_level(logging.WARNING, "patcher"):
        for op in table.OPS:
            assert backends.accelerated(op, call_of(op), SEGMENTS) is None
    assert not caplog.records


def test_the_next_backend_takes_what_the_first_cannot(monkeypatch):
    provide(monkeypatch, "causal_conv1d: causal_conv1d_fn")
    provide(monkeypatch, "fla: causal_conv1d")
    call = call_of("causal_conv1d")
    backends.run("causal_conv1d", call, SEGMENTS)
    assert fake_kernels.calls == ["causal_conv1d_fn"] * 3
    narrow = {name: x[..., :60, :] if name != "activation" else x for name, x in call.items() if name != "bias"}
    backends.run("causal_conv1d", {**narrow, "bias": None}, SEGMENTS)  # 60 channels: not a multiple of 8
    assert fake_kernels.calls[3:] == ["causal_conv1d_fn"] + ["fla_causal_conv1d"] * 3


def test_tried_once_for_each_dtype_and_width(monkeypatch):
    provide(monkeypatch, "fla: chunk_kda")
    call = call_of("kimi_delta_attention")
    for _ in range(3):
        backends.run("kimi_delta_attention", call, SEGMENTS)
    assert len(fake_kernels.calls) == 5
    backends.run(
        "kimi_delta_attention", {n: x.double() if hasattr(x, "double") else x for n, x in call.items()}, SEGMENTS
    )
    assert len(fake_kernels.calls) == 8


def test_a_kernel_sees_a_row_of_the_callers_size_first(monkeypatch):
    rows = []

    def tunes_itself(q, k, v, g, beta, cu_seqlens=None, **kwargs):
        rows.append(q.shape[1])
        return fake_kernels.chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=cu_seqlens, **kwargs)

    provide(monkeypatch, "fla: chunk_gated_delta_rule", tunes_itself)
    backends.run("gated_delta_rule", call_of("gated_delta_rule", IN_ROWS), IN_ROWS)
    assert rows == [IN_ROWS.total, samples.segments().total, IN_ROWS.total]


def test_nothing_is_tried_on_the_cpu(monkeypatch):
    monkeypatch.undo()
    provide(monkeypatch, "fla: chunk_kda")
    backends.run("kimi_delta_attention", call_of("kimi_delta_attention"), SEGMENTS)
    assert not fake_kernels.calls
    found = {state.name: state.state for state in backends.states("cpu")}
    assert found["fla: chunk_kda"] == "not on cpu"
    assert found["causal_conv1d: causal_conv1d_fn"] == "not installed"


@pytest.mark.parametrize(
    "surrounded", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", dtype=torch.bfloat16)]
)
def test_the_self_test_does_not_see_what_surrounds_the_forward(surrounded, monkeypatch):
    provide(monkeypatch, "fla: chunk_gated_delta_rule")
    random = torch.get_rng_state()
    with surrounded():
        assert backends.accelerated("gated_delta_rule", call_of("gated_delta_rule"), SEGMENTS) is not None
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("reentrant", [True, False])
def test_the_first_call_may_be_in_a_checkpointed_layer(reentrant, monkeypatch):
    provide(monkeypatch, "fla: chunk_gated_delta_rule")
    call = call_of("gated_delta_rule")
    v = call["v"].requires_grad_()
    out = checkpoint(lambda v: backends.run("gated_delta_rule", {**call, "v": v}, SEGMENTS), v, use_reentrant=reentrant)
    out.sum().backward()
    assert v.grad is not None


def test_states_name_each_backend(monkeypatch):
    provide(monkeypatch, "causal_conv1d: causal_conv1d_fn")
    provide(monkeypatch, "fla: causal_conv1d")
    provide(monkeypatch, "fla: chunk_kda", without_boundaries("fla: chunk_kda"))
    monkeypatch.setattr("replacements.kernels.backends.registry._accelerator", lambda: torch.device("cpu"))
    found = {state.name: state for state in backends.states()}
    assert list(found) == list(BACKENDS)
    assert found["causal_conv1d: causal_conv1d_fn"].state == "in use"
    assert found["fla: causal_conv1d"].state == "works"
    assert found["fla: chunk_kda"].state == "failed"
    assert "differs" in found["fla: chunk_kda"].detail
    assert found["fla: chunk_gated_delta_rule"].state == "failed"
    assert "chunk_gated_delta_rule is in the installed release" in found["fla: chunk_gated_delta_rule"].detail
    assert found["mamba_ssm: selective_scan_fn"].state == "not installed"
    assert backends.self_test()["fla: causal_conv1d"].startswith("works: within")


USED = {
    "qwen3_5": {"causal_conv1d_fn", "chunk_gated_delta_rule"},
    "kimi_linear": {"causal_conv1d_fn", "chunk_kda"},
    "bamba": {"causal_conv1d_fn", "mamba_chunk_scan_combined"},
    "mamba": {"causal_conv1d_fn", "selective_scan_fn"},
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("family", USED)
def test_a_packed_row_runs_the_kernels_and_stays_exact(family, training, monkeypatch):
    pytest.importorskip(f"transformers.models.{family}")
    model, documents = tiny_model(family), token_documents([23, 1, 70, 36])
    with torch.no_grad():
        apart = log_probs_apart(model, documents)
        for name in PLACES:
            provide(monkeypatch, name)
        attach(model)
        try:
            packed = log_probs(model.train(training), **packed_row(documents))
        finally:
            detach_all()
    fused = training and family == "bamba"
    assert set(fake_kernels.calls) == ({"mamba_split_conv1d_scan_combined"} if fused else USED[family])
    assert (packed - apart).abs().max() <= 1e-4


class HubKernel(torch.nn.Module):
    """As the kernels package has it: the function is a module, and binding a kernel sets its forward."""

    def __init__(self, function):
        super().__init__()
        self.function, self.calls = function, 0

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self.function(*args, **kwargs)


def test_kernels_from_the_hub_run_plain_rows_alone(monkeypatch):
    model, documents = tiny_model("qwen3_5"), token_documents([23, 1, 70])
    module = sys.modules[type(model).__module__]
    if not hasattr(module, "causal_conv1d_fn"):
        pytest.skip("this transformers holds its kernels on the mixers")
    bound = HubKernel(module.causal_conv1d_fn)
    monkeypatch.setattr(module, "causal_conv1d_fn", bound)
    with torch.no_grad():
        apart = log_probs_apart(model, documents)
        bound.calls = 0
        attach(model)
        try:
            packed = log_probs(model, **packed_row(documents))
            assert bound.calls == 0
            log_probs(model, input_ids=documents[0][None])
            assert bound.calls > 0
        finally:
            detach_all()
    assert (packed - apart).abs().max() <= 1e-4
