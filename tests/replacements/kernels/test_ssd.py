import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replacements.kernels.segments import Segments
from replacements.kernels.ssd import plan, ssd
from replacements.kernels.ssd.naive import naive_ssd
from tests.support.dispatch import Recorder
from tests.support.kernels import LONG_ROWS, ROWS, assert_agrees, assert_same, ends, gradients, random_lengths
from tests.support.ssd_inputs import sample_inputs

HEADS, WIDTH, GROUPS, STATE = 4, 3, 2, 5
PER_TOKEN = ("x", "dt", "B", "C", "z")


def draw(tokens, rows=1, dtype=torch.float64, heads=HEADS, width=WIDTH, groups=GROUPS, state=STATE, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "x": normal(rows, tokens, heads, width),
        "dt": normal(rows, tokens, heads) - 1,
        "A": -normal(heads).abs(),
        "B": normal(rows, tokens, groups, state),
        "C": normal(rows, tokens, groups, state),
        "D": normal(heads, width),
        "z": normal(rows, tokens, heads, width),
        "dt_bias": normal(heads),
    }


OPTIONS = {"dt_softplus": True, "dt_limit": (0.05, 1.5)}


@pytest.fixture(params=["chosen", "16, one block", "8, a chunk at a time"])
def chunks(request, monkeypatch):
    if request.param != "chosen":
        small = request.param.startswith("8")
        monkeypatch.setattr(plan, "_SIZES", (8,) if small else (16,))
        monkeypatch.setattr(plan, "_BLOCK_CPU", 1 if small else 1 << 30)


@pytest.mark.parametrize("lengths", ROWS.values(), ids=ROWS)
def test_equals_one_scan_per_document(lengths, chunks):
    segments = Segments(lengths)
    assert_agrees(ssd, naive_ssd, draw(segments.total), 1e-9, segments=segments, **OPTIONS)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=8),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([1, 400, 1 << 20]),
    st.integers(0, 9),
)
def test_equals_one_scan_per_document_in_any_row(lengths, size, budget, seed):
    segments = Segments(lengths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "_SIZES", (size,))
        patch.setattr(plan, "_BLOCK_CPU", budget)
        inputs = draw(segments.total, seed=seed)
        assert_agrees(ssd, naive_ssd, inputs, 1e-9, segments=segments, **OPTIONS)


def test_rows_of_a_batch(chunks):
    segments = Segments([9, 21, 30], rows=2)
    assert_agrees(ssd, naive_ssd, draw(30, rows=2), 1e-9, segments=segments, **OPTIONS)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_heads_share_groups(groups, chunks):
    assert_agrees(ssd, naive_ssd, draw(50, groups=groups), 1e-9, segments=Segments([33, 17]), **OPTIONS)


@pytest.mark.parametrize("left_out", [("D",), ("z",), ("dt_bias",), ("D", "z", "dt_bias")])
def test_optional_arguments(left_out):
    inputs = {name: x for name, x in draw(20).items() if name not in left_out}
    assert_agrees(ssd, naive_ssd, inputs, 1e-9, segments=Segments([13, 7]), dt_limit=(0.01, 0.5))


def test_skip_connection_per_head():
    inputs = draw(20)
    inputs["D"] = inputs["D"][:, 0].clone()
    assert_agrees(ssd, naive_ssd, inputs, 1e-9, segments=Segments([13, 7]), **OPTIONS)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_lower_precision(dtype, tolerance):
    inputs = draw(100, dtype=dtype)
    for name in ("A", "D", "dt_bias"):
        inputs[name] = inputs[name].float()
    segments = Segments([40, 1, 59])
    assert ssd(**inputs, segments=segments, **OPTIONS).dtype == dtype
    assert_agrees(ssd, naive_ssd, inputs, tolerance, segments=segments, **OPTIONS)


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(plan, "_SIZES", (4,))
    monkeypatch.setattr(plan, "_BLOCK_CPU", 1)
    inputs = {n: x.requires_grad_() for n, x in draw(11, heads=2, width=2, groups=1, state=2).items()}
    segments = Segments([9, 1, 1])

    def op(*tensors):
        return ssd(**dict(zip(inputs, tensors, strict=True)), segments=segments, dt_softplus=True)

    assert torch.autograd.gradcheck(op, tuple(inputs.values()))


def test_strides_do_not_matter():
    segments = Segments([11, 19])
    strided = {name: x.repeat_interleave(2, dim=-1)[..., ::2] for name, x in draw(30).items()}
    assert not any(x.is_contiguous() for x in strided.values())
    assert_agrees(ssd, naive_ssd, strided, 1e-9, segments=segments, **OPTIONS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_decays_stay_finite(dtype, chunks):
    inputs = draw(60, dtype=dtype)
    inputs["dt"][:, ::7] = 1e10
    inputs["dt"][:, 3::7] = -1e4
    inputs["A"][0], inputs["A"][1] = -1e30, 0
    assert_agrees(ssd, naive_ssd, inputs, 1e-4, segments=Segments([25, 5, 30]), dt_softplus=True)


def test_growing_states_are_not_clipped():
    inputs = draw(40)
    inputs["A"] = inputs["A"].abs() / 4
    assert_agrees(ssd, naive_ssd, inputs, 1e-9, segments=Segments([27, 13]), **OPTIONS)


def test_strong_decays_keep_the_gradient_of_the_decay(chunks):
    """Its true value is tiny beside the terms that cancel in it."""
    inputs = draw(64, dtype=torch.float32)
    inputs["A"][:] = -16
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    exact = {name: x.double().requires_grad_() for name, x in inputs.items()}
    options = {"segments": Segments([64]), "dt_softplus": True, "dt_limit": (0.9, 1.5)}
    (ours,) = gradients(ssd(**leaves, **options), [leaves["A"]])
    (wanted,) = gradients(naive_ssd(**exact, **options), [exact["A"]])
    assert wanted.abs().max() < 1e-3
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=0)


def test_a_neighbour_changes_nothing_to_the_last_bit(chunks):
    segments = Segments([23, 14, 27])
    inputs = draw(64, dtype=torch.float32)
    changed = {name: x.clone() for name, x in inputs.items()}
    for name in PER_TOKEN:
        changed[name][:, 23:37] = 3 * changed[name][:, 23:37] + 5
    results = []
    for case in (inputs, changed):
        leaves = {name: x.clone().requires_grad_() for name, x in case.items()}
        out = ssd(**leaves, segments=segments, dt_softplus=True)
        results.append((out, *gradients(out, [leaves[name] for name in PER_TOKEN])))
    for before, after in zip(*results, strict=True):
        assert torch.equal(before[:, :23], after[:, :23])
        assert torch.equal(before[:, 37:], after[:, 37:])
        assert not torch.equal(before[:, 23:37], after[:, 23:37])


HOST = plan.Heads(count=24, width=64, groups=1, state=128)


@pytest.mark.parametrize(
    "lengths", [[5000], [1] * 5000, random_lengths(60, 400), random_lengths(900, 20), [3, 4000, 1]]
)
def test_chunks_tile_the_row(lengths):
    segments = Segments(lengths)
    size, edges = plan.choose_chunks(segments.offsets, HOST)
    assert edges[0] == 0
    assert edges[-1] == segments.total
    assert 1 <= np.diff(edges).min() <= np.diff(edges).max() <= size


def test_short_documents_are_not_cut():
    offsets = Segments(random_lengths(900, 20)).offsets
    _, edges = plan.choose_chunks(offsets, HOST)
    assert np.isin(edges, offsets).all()


def test_long_documents_fill_their_chunks():
    size, edges = plan.choose_chunks(Segments([3000, 1096]).offsets, HOST)
    assert edges.size - 1 == 4096 // size


def test_without_cut_documents_no_state_is_computed():
    def calls(lengths):
        inputs = draw(sum(lengths), dtype=torch.float32)
        segments = Segments(lengths)
        ssd(**inputs, segments=segments)
        with Recorder() as recorder:
            ssd(**inputs, segments=segments)
        return recorder.calls

    assert calls([1] * 512) < calls([512])


def record(lengths):
    sizes = {"heads": 8, "width": 16, "groups": 1, "state": 16}
    inputs = {n: x.requires_grad_() for n, x in draw(sum(lengths), dtype=torch.float32, **sizes).items()}
    segments = Segments(lengths)
    plan.plan_blocks(
        segments, plan.Heads(*(sizes[n] for n in ("heads", "width", "groups", "state"))), torch.device("cpu")
    )
    with Recorder() as recorder:
        ssd(**inputs, segments=segments, dt_softplus=True).sum().backward()
    return recorder


def test_work_does_not_grow_with_the_documents_and_linearly_with_the_row():
    one, longer = record([4096]), record([8192])
    assert record([1] * 4096).calls <= one.calls
    assert record([4] * 1024).calls <= one.calls
    assert longer.calls < 2.1 * one.calls


def test_nothing_is_held_for_the_whole_row_but_rows_of_the_input():
    recorder = record([32768])
    assert recorder.largest <= max(32768 * 8 * 16, 2 * plan._BLOCK_CPU)


def test_autocast_does_not_lower_the_precision():
    inputs, segments = draw(30, dtype=torch.float32), Segments([30])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = ssd(**inputs, segments=segments, **OPTIONS)
    assert torch.equal(mixed, ssd(**inputs, segments=segments, **OPTIONS))


def test_sample_inputs_are_the_arguments():
    inputs = sample_inputs(30, heads=2, width=4, state=8, dtype=torch.bfloat16)
    ssd(**inputs, segments=Segments([30]), dt_softplus=True).sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in inputs.values())


@pytest.mark.parametrize(
    ("name", "shape"), [("dt", (1, 9, 4)), ("A", (5,)), ("C", (1, 10, 2, 4)), ("D", (3,)), ("z", (1, 10, 4, 2))]
)
def test_wrong_shapes_are_named(name, shape):
    inputs = draw(10)
    inputs[name] = torch.zeros(shape, dtype=torch.float64)
    with pytest.raises(ValueError, match=f"^{name} must be"):
        ssd(**inputs, segments=Segments([10]))


def test_groups_must_divide_the_heads():
    with pytest.raises(ValueError, match="3 groups do not divide 4 heads"):
        ssd(**draw(10, groups=3), segments=Segments([10]))


def test_segments_must_cover_the_row():
    with pytest.raises(ValueError, match="segments cover 9 tokens, the input has 1 x 10"):
        ssd(**draw(10), segments=Segments([9]))


@pytest.mark.parametrize("lengths", LONG_ROWS.values(), ids=LONG_ROWS)
def test_long_rows(lengths):
    segments = Segments(lengths)
    inputs = {
        n: x.requires_grad_()
        for n, x in draw(segments.total, dtype=torch.float32, heads=2, width=2, groups=1, state=3).items()
    }
    out = ssd(**inputs, segments=segments, **OPTIONS)
    assert all(torch.isfinite(x).all() for x in gradients(out, list(inputs.values())))
    for kept, cut in ends(segments):
        part = {n: (x[:, kept] if n in PER_TOKEN else x).detach().double() for n, x in inputs.items()}
        assert_same(out[:, kept], naive_ssd(**part, segments=cut, **OPTIONS), 1e-5)
