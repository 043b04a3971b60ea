import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replacements.kernels.segments import Segments

LAYOUTS = ["aligned", "shared", "row"]
LENGTHS = st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any)


def test_offsets_and_indices():
    segments = Segments([3, 0, 1, 2])
    assert (segments.total, segments.count, segments.longest) == (6, 3, 3)
    assert segments.cu_seqlens("cpu").tolist() == [0, 3, 4, 6]
    assert segments.cu_seqlens("cpu").dtype == segments.seq_idx("cpu").dtype == torch.int32
    assert segments.seq_idx("cpu").tolist() == [[0, 0, 0, 1, 2, 2]]
    assert segments.starts("cpu").tolist() == [0, 3, 4]
    assert segments.positions("cpu").tolist() == [0, 1, 2, 0, 0, 1]


def test_built_once_and_shared():
    segments = Segments([3, 4])
    assert segments.chunks(4, "cpu") is segments.chunks(4, torch.device("cpu"))
    assert segments.cu_seqlens("cpu") is segments.cu_seqlens("cpu")
    assert Segments([3, 4]) != segments


def test_lengths_cannot_be_changed():
    given_lengths = np.array([3, 4])
    segments = Segments(given_lengths)
    given_lengths[0] = 9
    assert segments.lengths.tolist() == [3, 4]
    with pytest.raises(ValueError, match="read-only"):
        segments.lengths[0] = 1
    segments.starts("cpu").add_(1)
    assert segments.offsets.tolist() == [0, 3, 7]


@pytest.mark.parametrize(
    ("lengths", "rows", "message"),
    [
        ([], 1, "no tokens"),
        ([0, 0], 1, "no tokens"),
        ([3, -1], 1, "negative"),
        ([1.5], 1, "integers"),
        ([[1, 2]], 1, "flat"),
        ([2**31], 1, "int32"),
        ([3, 4], 2, "batch rows"),
        ([3, 5], 2, "crosses"),
    ],
)
def test_refused(lengths, rows, message):
    with pytest.raises(ValueError, match=message):
        Segments(lengths, rows)


def test_rows_of_whole_documents():
    assert Segments([1, 3, 4, 2, 2], rows=3).rows == 3


@pytest.mark.parametrize("layout", LAYOUTS)
@given(lengths=LENGTHS, size=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=60, deadline=None)
def test_plan_against_its_definition(layout, lengths, size):
    segments = Segments(lengths)
    plan = segments.chunks(size, "cpu", layout)
    document = segments.seq_idx("cpu")[0].long()
    index, valid = plan.index.view(-1, size), plan.valid
    assert torch.equal(plan.index[plan.inverse], torch.arange(segments.total))
    assert int(valid.sum()) == segments.total
    assert torch.equal(document[index], plan.document)
    # Inside a chunk, tokens of a document follow each other.
    same = valid[:, 1:] & valid[:, :-1] & (plan.document[:, 1:] == plan.document[:, :-1])
    assert torch.equal((index[:, 1:] - index[:, :-1])[same], torch.ones(int(same.sum()), dtype=torch.long))
    assert _links(plan) == _links_by_walking(segments, plan)


def _links(plan):
    index, found = plan.index.view(-1, plan.size), {}
    for step, (begin, count) in enumerate(plan.steps):
        for link in range(begin, begin + count):
            source, target = int(plan.source[link]), plan.free + link
            last = index[source][plan.leaves[source]].max().item()
            first = index[target][plan.enters[target]].min().item()
            found[last] = (first, step)
            if step:
                previous = int(plan.previous[link - plan.steps[0][1]])
                assert previous == plan.steps[step - 1][0] + link - begin
                assert plan.free + previous == source
    return found


def _links_by_walking(segments, plan):
    """Every pair of neighbours of one document in different chunks, and how many such came before."""
    chunk, document, found, step = plan.inverse // plan.size, segments.seq_idx("cpu")[0], {}, 0
    for t in range(segments.total - 1):
        if document[t] != document[t + 1]:
            step = 0
        elif chunk[t] != chunk[t + 1]:
            found[t] = (t + 1, step)
            step += 1
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_shrink_and_are_as_deep_as_the_longest_document(layout):
    plan = Segments([6, 33, 1, 9, 64, 2]).chunks(8, "cpu", layout)
    counts = [count for _, count in plan.steps]
    assert counts == sorted(counts, reverse=True)
    assert len(counts) == (8 if layout == "row" else 7)
    assert plan.links == sum(counts) == plan.count - plan.free


def test_aligned_steps_are_runs_of_chunks_longest_document_first():
    plan = Segments([3, 9, 1, 6]).chunks(4, "cpu")
    assert plan.document[: plan.free, 0].tolist() == [1, 3, 0, 2]
    assert plan.document[plan.free :, 0].tolist() == [1, 3, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gather_and_scatter(layout):
    segments = Segments([5, 1, 1, 9, 3])
    plan = segments.chunks(4, "cpu", layout)
    x = torch.randn(segments.total, 2, 3)
    chunks = plan.gather(x, heads=4)
    assert torch.equal(chunks[:, 1], chunks[:, 0])
    assert torch.equal(chunks[:, ::2].transpose(1, 2), x[plan.index].view(plan.count, 4, 2, 3))
    assert torch.equal(plan.scatter(plan.gather(x)), x)
    assert torch.equal(plan.scatter(plan.gather(x[..., 0])), x[..., 0])


def test_pairs_hide_other_documents_and_padding():
    plan = Segments([2, 1, 3]).chunks(4, "cpu", "row")
    assert plan.pairs[plan.inverse[0] // 4].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert plan.pairs[plan.inverse[5] // 4].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0] * 4, [0] * 4]


@pytest.mark.parametrize(("layout", "chunks"), [("shared", 625), ("row", 625)])
def test_tiny_documents_do_not_waste_chunks(layout, chunks):
    plan = Segments(np.ones(10_000, np.int64)).chunks(16, "cpu", layout)
    assert (plan.count, plan.links, plan.steps) == (chunks, 0, ())


def test_shared_chunks_need_a_power_of_two():
    with pytest.raises(ValueError, match="power of two"):
        Segments([3]).chunks(6, "cpu", "shared")
