import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replacements.kernels.segments import Segments
from replacements.kernels.selective_scan import scan, selective_scan
from replacements.kernels.selective_scan.naive import naive_selective_scan
from tests.support.dispatch import Recorder
from tests.support.kernels import LONG_ROWS, ROWS, assert_agrees, assert_same, ends, gradients
from tests.support.selective_scan_inputs import sample_inputs

CHANNELS, STATE = 6, 4
PER_TOKEN = ("u", "delta", "B", "C", "z")


def draw(tokens, rows=1, dtype=torch.float64, channels=CHANNELS, state=STATE, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "u": normal(rows, channels, tokens),
        "delta": normal(rows, channels, tokens) - 1,
        "A": -normal(channels, state).abs(),
        "B": normal(rows, state, tokens),
        "C": normal(rows, state, tokens),
        "D": normal(channels),
        "z": normal(rows, channels, tokens),
        "delta_bias": normal(channels),
    }


@pytest.fixture(params=["one block", "many blocks"])
def blocks(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(scan, "_BLOCK_CPU", 1)
        monkeypatch.setattr(scan, "_BLOCK_TOKENS", 7)


@pytest.mark.parametrize("lengths", ROWS.values(), ids=ROWS)
def test_equals_one_scan_per_document(lengths, blocks):
    segments = Segments(lengths)
    inputs = draw(segments.total)
    assert_agrees(selective_scan, naive_selective_scan, inputs, 1e-9, segments=segments, delta_softplus=True)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 40), st.integers(0, 9))
def test_equals_one_scan_per_document_in_any_row(lengths, block, seed):
    segments = Segments(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_BLOCK_CPU", 1)
        patch.setattr(scan, "_BLOCK_TOKENS", block)
        inputs = draw(segments.total, seed=seed)
        assert_agrees(selective_scan, naive_selective_scan, inputs, 1e-9, segments=segments, delta_softplus=True)


def test_rows_of_a_batch(blocks):
    segments = Segments([9, 21, 30], rows=2)
    assert_agrees(selective_scan, naive_selective_scan, draw(30, rows=2), 1e-9, segments=segments, delta_softplus=True)


@pytest.mark.parametrize("left_out", [("D",), ("z",), ("delta_bias",), ("D", "z", "delta_bias")])
def test_optional_arguments(left_out):
    inputs = {name: x for name, x in draw(20).items() if name not in left_out}
    inputs["delta"] = inputs["delta"].abs()
    assert_agrees(selective_scan, naive_selective_scan, inputs, 1e-9, segments=Segments([13, 7]))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_lower_precision(dtype, tolerance):
    inputs = draw(100, dtype=dtype)
    for name in ("A", "D", "delta_bias"):  # parameters stay in float32, as the mixers pass them
        inputs[name] = inputs[name].float()
    segments = Segments([40, 1, 59])
    assert selective_scan(**inputs, segments=segments, delta_softplus=True).dtype == dtype
    assert_agrees(selective_scan, naive_selective_scan, inputs, tolerance, segments=segments, delta_softplus=True)


def test_gradcheck():
    inputs = {name: x.requires_grad_() for name, x in draw(9, channels=2, state=2).items()}
    segments = Segments([4, 1, 4])

    def op(*tensors):
        return selective_scan(**dict(zip(inputs, tensors, strict=True)), segments=segments, delta_softplus=True)

    assert torch.autograd.gradcheck(op, tuple(inputs.values()))


def test_strides_do_not_matter():
    segments = Segments([11, 19])
    inputs = draw(30)
    strided = dict(inputs)
    for name in ("u", "delta", "B", "C", "z"):
        wide = inputs[name].transpose(1, 2).repeat_interleave(2, dim=2)
        strided[name] = wide[..., ::2].transpose(1, 2)
        assert not strided[name].is_contiguous()
    reference = selective_scan(**inputs, segments=segments)
    torch.testing.assert_close(selective_scan(**strided, segments=segments), reference)
    assert_agrees(selective_scan, naive_selective_scan, strided, 1e-9, segments=segments, delta_softplus=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_decays_stay_finite(dtype):
    inputs = draw(60, dtype=dtype)
    inputs["delta"][..., ::7] = 1e10
    inputs["delta"][..., 3::7] = -1e4
    inputs["A"][0] = -1e30
    inputs["A"][1] = 0
    assert_agrees(
        selective_scan, naive_selective_scan, inputs, 1e-4, segments=Segments([25, 5, 30]), delta_softplus=True
    )


def test_a_neighbour_changes_nothing_to_the_last_bit(blocks):
    segments = Segments([23, 14, 27])
    inputs = draw(64, dtype=torch.float32)
    changed = {name: x.clone() for name, x in inputs.items()}
    for name in ("u", "delta", "B", "C", "z"):
        changed[name][..., 23:37] = 3 * changed[name][..., 23:37] + 5
    results = []
    for case in (inputs, changed):
        leaves = {name: x.clone().requires_grad_() for name, x in case.items()}
        out = selective_scan(**leaves, segments=segments, delta_softplus=True)
        results.append((out, *gradients(out, [leaves[n] for n in ("u", "delta", "B", "C", "z")])))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[..., :23], after[..., :23])
        assert torch.equal(before[..., 37:], after[..., 37:])
        assert not torch.equal(before[..., 23:37], after[..., 23:37])


def record(tokens, lengths):
    inputs = {name: x.requires_grad_() for name, x in draw(tokens, dtype=torch.float32, channels=64, state=16).items()}
    segments = Segments(lengths)
    scan.plan_blocks(segments, 64 * 16, torch.device("cpu"))
    with Recorder() as recorder:
        selective_scan(**inputs, segments=segments, delta_softplus=True).sum().backward()
    return recorder


def test_work_does_not_depend_on_the_documents_and_grows_with_the_row():
    one, many = record(2048, [2048]), record(2048, [1] * 2048)
    longer = record(4096, [4096])
    assert many.calls == one.calls
    assert longer.calls < 2.1 * one.calls


def test_no_tensor_holds_the_states_of_the_row():
    assert record(8192, [8192]).largest < 8192 * 64 * 16 // 8


def test_autocast_does_not_lower_the_precision():
    inputs, segments = draw(30, dtype=torch.float32), Segments([30])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = selective_scan(**inputs, segments=segments, delta_softplus=True)
    assert torch.equal(mixed, selective_scan(**inputs, segments=segments, delta_softplus=True))


def test_sample_inputs_are_the_arguments():
    inputs = sample_inputs(30, channels=3, state=4, dtype=torch.bfloat16)
    selective_scan(**inputs, segments=Segments([30]), delta_softplus=True).sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in inputs.values())


@pytest.mark.parametrize(
    ("name", "shape"), [("delta", (1, 6, 9)), ("A", (5, 4)), ("B", (1, 5, 10)), ("D", (7,)), ("z", (1, 10, 6))]
)
def test_wrong_shapes_are_named(name, shape):
    inputs = draw(10)
    inputs[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"^{name} must be"):
        selective_scan(**inputs, segments=Segments([10]))


def test_segments_must_cover_the_row():
    with pytest.raises(ValueError, match="segments cover 9 tokens, the input has 1 x 10"):
        selective_scan(**draw(10), segments=Segments([9]))


@pytest.mark.parametrize("lengths", LONG_ROWS.values(), ids=LONG_ROWS)
def test_long_rows(lengths):
    segments = Segments(lengths)
    inputs = {n: x.requires_grad_() for n, x in draw(segments.total, dtype=torch.float32, channels=2, state=2).items()}
    out = selective_scan(**inputs, segments=segments, delta_softplus=True)
    assert all(torch.isfinite(x).all() for x in gradients(out, list(inputs.values())))
    for kept, cut in ends(segments):
        part = {n: (x[..., kept] if n in PER_TOKEN else x).detach().double() for n, x in inputs.items()}
        assert_same(out[..., kept], naive_selective_scan(**part, segments=cut, delta_softplus=True), 1e-5)
