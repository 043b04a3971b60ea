import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replacements.kernels.causal_conv1d import causal_conv1d, taps
from replacements.kernels.causal_conv1d.naive import causal_conv1d as naive
from replacements.kernels.segments import Segments
from tests.support.kernels import LONG_ROWS, ROWS, assert_agrees, assert_same, ends, gradients


def make(segments, channels=3, width=4, dtype=torch.float64, channels_last=True, bias=True):
    generator = torch.Generator().manual_seed(0)
    length = segments.total // segments.rows
    x = torch.randn(segments.rows, length, channels, generator=generator, dtype=torch.float64).to(dtype)
    x = x.transpose(1, 2) if channels_last else x.transpose(1, 2).contiguous()
    weight = torch.randn(channels, width, generator=generator, dtype=torch.float64).to(dtype)
    offset = torch.randn(channels, generator=generator, dtype=torch.float64).to(dtype) if bias else None
    return {"x": x, "weight": weight, "bias": offset}


@pytest.fixture(params=["one block", "small blocks"])
def _blocks(request, monkeypatch):
    if request.param == "small blocks":
        monkeypatch.setattr(taps, "_CPU_BLOCK_BYTES", 1)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("row", ROWS)
def test_agrees_with_each_document_alone(row, channels_last, activation):
    segments = Segments(ROWS[row])
    inputs = make(segments, channels_last=channels_last)
    assert_agrees(causal_conv1d, naive, inputs, 1e-12, segments=segments, activation=activation)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=10),
    width=st.integers(1, 7),
    block=st.sampled_from([1, 2**19]),
)
@settings(max_examples=60, deadline=None)
def test_any_lengths_and_width(lengths, width, block):
    segments = Segments(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taps, "_CPU_BLOCK_BYTES", block)
        assert_agrees(causal_conv1d, naive, make(segments, width=width), 1e-12, segments=segments)


@pytest.mark.parametrize("channels_last", [True, False])
def test_batch_rows(channels_last):
    segments = Segments([3, 7, 1, 1, 8], rows=2)
    inputs = make(segments, channels_last=channels_last)
    assert_agrees(causal_conv1d, naive, inputs, 1e-12, segments=segments, activation="swish")


def test_without_bias():
    segments = Segments([3, 7])
    inputs = make(segments)
    inputs["bias"] = None
    weight = inputs["weight"].requires_grad_()
    ours, theirs = (op(**inputs, segments=segments) for op in (causal_conv1d, naive))
    assert_same(ours, theirs, 1e-12)
    assert_same(gradients(ours, [weight])[0], gradients(theirs, [weight])[0], 1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_accumulates_in_float32(dtype):
    segments = Segments([9, 1, 30])
    inputs = make(segments, dtype=dtype)
    out = causal_conv1d(**inputs, segments=segments, activation="silu")
    exact = naive(**{n: x.double() for n, x in inputs.items()}, segments=segments, activation="silu")
    assert out.dtype == dtype
    assert torch.equal(out, exact.to(dtype)) or (out.double() - exact).abs().max() < torch.finfo(dtype).eps * 4
    assert_agrees(causal_conv1d, naive, inputs, torch.finfo(dtype).eps * 4, segments=segments, activation="silu")


def test_strided_input_and_layout_of_the_result():
    segments = Segments([4, 6])
    wide = torch.randn(1, 10, 8, dtype=torch.float64).transpose(1, 2)
    weight = torch.randn(4, 3, dtype=torch.float64)
    strided = causal_conv1d(wide[:, ::2], weight, None, segments)
    assert_same(strided, causal_conv1d(wide[:, ::2].contiguous(), weight, None, segments), 1e-12)
    assert causal_conv1d(wide[:, :4], weight, None, segments).stride(1) == 1


@pytest.fixture(params=["indexed", "masked"])
def _cleared(request, monkeypatch):
    monkeypatch.setattr(taps, "_DENSE", 2.0 if request.param == "indexed" else 0.0)


@pytest.mark.usefixtures("_cleared")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_both_ways_to_clear_tokens(dtype):
    segments = Segments([5, 1, 1, 2, 60, 3])
    inputs = make(segments, dtype=dtype, channels_last=False)
    tolerance = 1e-12 if dtype == torch.float64 else torch.finfo(dtype).eps * 4
    assert_agrees(causal_conv1d, naive, inputs, tolerance, segments=segments, activation="silu")


@pytest.mark.usefixtures("_cleared")
@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("value", [1e30, float("nan"), float("inf")])
def test_nothing_of_a_neighbour_arrives(value, channels_last):
    segments = Segments([5, 2, 6])
    inputs = make(segments, channels_last=channels_last)
    out = causal_conv1d(**inputs, segments=segments, activation="silu")
    inputs["x"][..., 5:7] = value
    changed = causal_conv1d(**inputs, segments=segments, activation="silu")
    assert torch.equal(out[..., :5], changed[..., :5])
    assert torch.equal(out[..., 7:], changed[..., 7:])


@pytest.mark.usefixtures("_cleared")
@pytest.mark.parametrize("channels_last", [True, False])
def test_no_gradient_reaches_a_neighbour(channels_last):
    segments = Segments([5, 2, 6])
    inputs = make(segments, channels_last=channels_last)
    x = inputs["x"].requires_grad_()
    (grad,) = torch.autograd.grad(causal_conv1d(**inputs, segments=segments)[..., 5:7].sum(), x)
    assert grad[..., 5:7].abs().min() > 0
    assert not grad[..., :5].any()
    assert not grad[..., 7:].any()


def test_gradcheck_and_repeated_backward():
    segments = Segments([3, 1, 5])
    inputs = [x.requires_grad_() for x in make(segments, channels=2).values()]
    assert torch.autograd.gradcheck(lambda *a: causal_conv1d(*a, segments, "silu"), inputs)
    out = causal_conv1d(*inputs, segments, "silu")
    first = torch.autograd.grad(out.sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    (grad,) = torch.autograd.grad(causal_conv1d(*inputs, segments).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("lengths", LONG_ROWS.values(), ids=LONG_ROWS)
@pytest.mark.parametrize("channels_last", [True, False])
def test_long_rows(lengths, channels_last):
    segments = Segments(lengths)
    drawn = make(segments, channels=2, dtype=torch.float32, channels_last=channels_last)
    inputs = {n: x.requires_grad_() for n, x in drawn.items()}
    out = causal_conv1d(**inputs, segments=segments, activation="silu")
    assert all(torch.isfinite(x).all() for x in gradients(out, list(inputs.values())))
    for kept, cut in ends(segments):
        part = {n: x[..., kept] if n == "x" else x for n, x in inputs.items()}
        assert_same(out[..., kept], naive(**part, segments=cut, activation="silu"), 1e-5)


@pytest.mark.parametrize("channels_last", [True, False])
def test_a_weight_in_another_dtype(channels_last):
    """A model loaded in bfloat16 may keep its convolutions in float32."""
    segments = Segments([9, 1, 30])
    inputs = make(segments, channels_last=channels_last)
    inputs = {n: x.to(torch.bfloat16 if n == "x" else torch.float32) for n, x in inputs.items()}
    out = causal_conv1d(**inputs, segments=segments, activation="silu")
    assert out.dtype == torch.bfloat16
    assert_agrees(causal_conv1d, naive, inputs, 2**-7, segments=segments, activation="silu")


@pytest.mark.parametrize(("channels_last", "taken"), [(True, 1), (False, 2)])
def test_what_is_kept_for_the_backward(channels_last, taken):
    segments = Segments([40, 24])
    inputs = {n: x.requires_grad_() for n, x in make(segments, 64, channels_last=channels_last).items()}
    out = causal_conv1d(**inputs, segments=segments, activation="silu")
    rows = [x for x in out.grad_fn.saved_tensors if x is not None and x.numel() == out.numel()]
    assert len(rows) == taken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "gelu"}, "activation"),
        ({"x": torch.zeros(1, 3, 8)}, "8 tokens"),
        ({"weight": torch.zeros(4, 4)}, "weight"),
    ],
)
def test_refused(change, message):
    segments = Segments([4, 3])
    with pytest.raises(ValueError, match=message):
        causal_conv1d(**({**make(segments), "activation": None} | change), segments=segments)
