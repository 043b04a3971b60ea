"""The gated delta rule and Kimi delta attention: one recurrence, two kinds of decay."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replacements.kernels.delta_rule import op as delta_op
from replacements.kernels.gated_delta_rule import gated_delta_rule
from replacements.kernels.gated_delta_rule.naive import gated_delta_rule as naive
from replacements.kernels.kimi_delta_attention import kimi_delta_attention
from replacements.kernels.segments import Segments
from tests.support.kernels import LONG_ROWS, ROWS, assert_agrees, assert_same, ends, gradients

GATED = SimpleNamespace(run=gated_delta_rule, channels=False)
KIMI = SimpleNamespace(run=kimi_delta_attention, channels=True)
NAMES = ("q", "k", "v", "g", "beta")


@pytest.fixture(params=[GATED, KIMI], ids=["gated", "kimi"])
def op(request):
    return request.param


def make(op, segments, shared=2, heads=2, key=3, value=5, dtype=torch.float64, seed=0):
    """Random arguments whose decays are slow, so that a leak or a lost state shows."""
    generator = torch.Generator().manual_seed(seed)
    shape = (segments.rows, segments.total // segments.rows)

    def draw(*size):
        return torch.rand(*shape, *size, generator=generator, dtype=torch.float64)

    g = -0.2 * draw(heads, *([key] if op.channels else []))
    tensors = (draw(shared, key) - 0.5, draw(shared, key) - 0.5, draw(heads, value) - 0.5, g, draw(heads))
    return {n: x.to(dtype) for n, x in zip(NAMES, tensors, strict=True)}


def chunked(patch, size, layout):
    patch.setattr(delta_op, "delta_rule_plan", lambda segments, device, *_: segments.chunks(size, device, layout))


@pytest.mark.parametrize("row", ROWS)
def test_agrees_with_each_document_alone(op, row):
    segments = Segments(ROWS[row])
    assert_agrees(op.run, naive, make(op, segments), 1e-9, segments=segments)


@pytest.mark.parametrize("layout", ["aligned", "shared", "row"])
@pytest.mark.parametrize("size", [4, 16, 64])
def test_every_layout_and_size(op, size, layout, monkeypatch):
    chunked(monkeypatch, size, layout)
    segments = Segments([5, 1, 1, 9, 3, 2, 4, 17, 64, 33])
    assert_agrees(op.run, naive, make(op, segments), 1e-9, segments=segments, qk_l2norm=True)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    size=st.sampled_from([2, 4, 8]),
    layout=st.sampled_from(["aligned", "shared", "row"]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=40, deadline=None)
def test_any_lengths(lengths, size, layout, seed):
    segments = Segments(lengths)
    with pytest.MonkeyPatch.context() as patch:
        chunked(patch, size, layout)
        for op in (GATED, KIMI):
            assert_agrees(op.run, naive, make(op, segments, seed=seed), 1e-9, segments=segments)


def test_batch_rows_grouped_heads_scale_and_norm(op):
    segments = Segments([30, 7, 1, 1, 35], rows=2)
    inputs = make(op, segments, shared=2, heads=6)
    assert_agrees(op.run, naive, inputs, 1e-9, segments=segments, scale=0.7, qk_l2norm=True)
    assert not torch.allclose(op.run(**inputs, segments=segments, scale=0.7), op.run(**inputs, segments=segments))


def test_normalises_as_the_fused_kernels_do():
    segments = Segments([1])
    tiny = {n: torch.full(s, 1e-3, dtype=torch.float64) for n, s in zip(NAMES[:3], [(1, 1, 1, 1)] * 3, strict=True)}
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    out = gated_delta_rule(**tiny, g=-one, beta=one, segments=segments, qk_l2norm=True)
    assert out.item() == pytest.approx(1e-3 * (1e-6 / 2e-6))


@pytest.mark.parametrize("decay", [0.0, -1e-3, -1e4, float("-inf"), "mixed"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 5e-6), (torch.float64, 1e-9)])
def test_extreme_decays(op, decay, dtype, tolerance):
    segments = Segments([70, 1, 64, 30])
    inputs = make(op, segments, dtype=dtype)
    if decay == "mixed":
        choice = torch.randint(0, 4, inputs["g"].shape, generator=torch.Generator().manual_seed(1))
        inputs["g"] = torch.tensor([0.0, -1e-3, -90.0, -1e4], dtype=dtype)[choice]
    else:
        inputs["g"].fill_(decay)
    finite = {n: x.clamp(min=-1e4) if n == "g" else x for n, x in inputs.items()}
    assert_same(op.run(**inputs, segments=segments), naive(**{n: x.double() for n, x in finite.items()},
                segments=segments), tolerance)  # fmt: skip
    assert_agrees(op.run, naive, finite, tolerance, segments=segments)


def test_small_decays_keep_their_digits_beside_large_ones(op):
    segments = Segments([64])
    inputs = make(op, segments, dtype=torch.float32)
    inputs["g"][:, :40] = -100.0
    inputs["g"][:, 40:] = -0.05
    out = op.run(**inputs, segments=segments)
    assert_same(out, naive(**{n: x.double() for n, x in inputs.items()}, segments=segments), 1e-6)


def test_correlated_keys_without_decay():
    segments = Segments([256])
    inputs = make(GATED, segments, dtype=torch.float32, key=8, value=8)
    inputs["k"] = inputs["k"][:, :1].expand_as(inputs["k"]) + 0.01 * inputs["k"]
    inputs["g"].zero_()
    inputs["beta"].fill_(1.0)
    assert_agrees(gated_delta_rule, naive, inputs, 2e-4, segments=segments, qk_l2norm=True)


def test_bfloat16(op):
    segments = Segments([40, 1, 90])
    inputs = make(op, segments, dtype=torch.bfloat16)
    out = op.run(**inputs, segments=segments)
    assert out.dtype == torch.bfloat16
    exact = naive(**{n: x.double() for n, x in inputs.items()}, segments=segments)
    assert (out.double() - exact).abs().max() <= 2**-8 * exact.abs().max()
    assert_agrees(op.run, naive, inputs, 2**-8, segments=segments)


def test_mixed_dtypes(op):
    segments = Segments([9, 4])
    inputs = make(op, segments, dtype=torch.bfloat16)
    inputs["g"] = inputs["g"].float()
    assert_agrees(op.run, naive, inputs, 2**-7, segments=segments)


def test_autocast_changes_nothing(op):
    segments = Segments([9, 4])
    inputs = {n: x.requires_grad_() for n, x in make(op, segments, dtype=torch.float32).items()}
    plain = op.run(**inputs, segments=segments)
    with torch.autocast("cpu", torch.bfloat16):
        cast = op.run(**inputs, segments=segments)
        cast_grads = gradients(cast, list(inputs.values()))
    assert torch.equal(plain, cast)
    for a, b in zip(gradients(plain, list(inputs.values())), cast_grads, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("layout", ["shared", "row"])
def test_nothing_of_a_neighbour_arrives(op, layout, monkeypatch):
    chunked(monkeypatch, 16, layout)
    segments = Segments([5, 7, 20, 3])
    inputs = make(op, segments, dtype=torch.float32)
    out = op.run(**inputs, segments=segments)
    for name in NAMES:
        inputs[name][:, 5:12] *= 1e3
    changed = op.run(**inputs, segments=segments)
    assert not torch.equal(out[:, 5:12], changed[:, 5:12])
    assert torch.equal(out[:, :5], changed[:, :5])
    assert torch.equal(out[:, 12:], changed[:, 12:])


@pytest.mark.parametrize("layout", ["shared", "row"])
def test_no_gradient_reaches_a_neighbour(op, layout, monkeypatch):
    chunked(monkeypatch, 16, layout)
    segments = Segments([5, 7, 20, 3])
    inputs = {n: x.requires_grad_() for n, x in make(op, segments, dtype=torch.float32).items()}
    out = op.run(**inputs, segments=segments)[:, 12:32]
    for name, grad in zip(NAMES, gradients(out, list(inputs.values())), strict=True):
        assert grad[:, 12:32].any(), name
        assert not grad[:, :12].any(), name
        assert not grad[:, 32:].any(), name


def test_gradcheck(op):
    segments = Segments([5, 1, 3])
    inputs = [x.requires_grad_() for x in make(op, segments, heads=2, shared=1, key=2, value=2).values()]
    assert torch.autograd.gradcheck(lambda *a: op.run(*a, segments, qk_l2norm=True), inputs)


def test_backward_twice_and_no_double_backward(op):
    segments = Segments([5, 20])
    inputs = [x.requires_grad_() for x in make(op, segments).values()]
    out = op.run(*inputs, segments) + op.run(*inputs, segments)
    first = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.square().sum(), inputs, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        second[0].sum().backward()


def test_only_some_inputs_need_gradients(op):
    segments = Segments([5, 20])
    inputs = make(op, segments)
    inputs["v"].requires_grad_()
    (grad,) = gradients(op.run(**inputs, segments=segments), [inputs["v"]])
    (wanted,) = gradients(naive(**inputs, segments=segments), [inputs["v"]])
    assert_same(grad, wanted, 1e-9)


def test_strided_inputs(op):
    segments = Segments([5, 20])
    inputs = make(op, segments)
    strided = {n: x.transpose(1, 2).contiguous().transpose(1, 2) for n, x in inputs.items()}
    strided["v"] = torch.cat([inputs["v"]] * 2, -1)[..., : inputs["v"].shape[-1]]
    assert not any(x.is_contiguous() for n, x in strided.items())
    assert_agrees(op.run, naive, strided, 1e-9, segments=segments)


@pytest.mark.parametrize("lengths", LONG_ROWS.values(), ids=LONG_ROWS)
def test_long_rows(op, lengths):
    segments = Segments(lengths)
    inputs = {n: x.requires_grad_() for n, x in make(op, segments, 1, 1, 2, 2, torch.float32).items()}
    out = op.run(**inputs, segments=segments)
    assert all(torch.isfinite(x).all() for x in gradients(out, list(inputs.values())))
    for kept, cut in ends(segments):
        assert_same(out[:, kept], naive(**{n: x[:, kept] for n, x in inputs.items()}, segments=cut), 1e-5)


@pytest.mark.parametrize(
    ("name", "shape"), [("v", (1, 9, 3, 5)), ("g", (1, 9, 2, 2)), ("beta", (1, 9)), ("k", (1, 9, 2, 4))]
)
def test_refused_shapes(op, name, shape):
    inputs = make(op, Segments([9]))
    with pytest.raises(ValueError, match=r"expected|share"):
        op.run(**(inputs | {name: torch.zeros(shape)}), segments=Segments([9]))


def test_refused_rows_and_dtypes(op):
    inputs = make(op, Segments([9]))
    with pytest.raises(ValueError, match="9 tokens but the documents 8"):
        op.run(**inputs, segments=Segments([8]))
    with pytest.raises(TypeError, match="floating"):
        op.run(**{n: x.long() for n, x in inputs.items()}, segments=Segments([9]))


def test_groups_of_heads(op, monkeypatch):
    segments = Segments([30, 7, 1, 1, 35], rows=2)
    inputs = make(op, segments, shared=3, heads=6)
    whole = op.run(**inputs, segments=segments)
    sizes = []
    monkeypatch.setattr(delta_op, "_GROUP_BYTES", {"cpu": 37 * 2 * 2 * 2 * 5 * 8})
    groups = delta_op._head_groups

    def spy(tensors):
        sizes.extend([x.shape[2] for x in part] for part in groups(tensors))
        return groups(tensors)

    monkeypatch.setattr(delta_op, "_head_groups", spy)
    assert_same(op.run(**inputs, segments=segments), whole, 1e-12)
    assert sizes == [[2, 2, 4, 4, 4], [1, 1, 2, 2, 2]]
    assert_agrees(op.run, naive, inputs, 1e-9, segments=segments, qk_l2norm=True)
