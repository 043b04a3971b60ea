import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from replacements.packing import boundaries
from replacements.packing.boundaries import (
    BoundaryError,
    find_documents,
    segments_to_positions,
    segments_to_seq_idx,
)


def positions(*lengths):
    return torch.cat([torch.arange(n) for n in lengths])[None]


def numbers(*lengths):
    return torch.repeat_interleave(torch.arange(len(lengths), dtype=torch.int32), torch.tensor(lengths))[None]


def lengths_of(kwargs, rows, length):
    segments, _ = find_documents(kwargs, rows, length)
    return None if segments is None else segments.lengths.tolist()


lengths_strategy = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@given(lengths_strategy)
def test_every_source_finds_the_same_documents(lengths):
    total = sum(lengths)
    cumulative = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), dtype=torch.int32)
    sources = [
        {"seq_idx": numbers(*lengths)},
        {"cu_seq_lens_q": cumulative},
        {"cu_seqlens": cumulative},
        {"packed_seq_lengths": torch.tensor(lengths)},
        {"position_ids": positions(*lengths)},
    ]
    assert all(lengths_of(source, 1, total) == lengths for source in sources)


@given(lengths_strategy)
def test_what_the_collator_writes_is_what_is_read(lengths):
    segments, _ = find_documents({"position_ids": positions(*lengths)}, 1, sum(lengths))
    assert torch.equal(segments_to_positions(segments), positions(*lengths))
    assert torch.equal(segments_to_seq_idx(segments), numbers(*lengths))
    assert segments_to_seq_idx(segments).dtype == torch.int32


def test_the_explicit_source_wins_and_disagreement_is_noticed():
    kwargs = {"seq_idx": numbers(3, 1, 2), "position_ids": positions(3, 3)}
    segments, agree = find_documents(kwargs, 1, 6)
    assert segments.lengths.tolist() == [3, 1, 2]
    assert not agree


EXPLICIT = {
    "seq_idx": numbers,
    "cu_seq_lens_q": lambda *lengths: torch.tensor([0, *np.cumsum(lengths)]),
    "cu_seqlens": lambda *lengths: torch.tensor([0, *np.cumsum(lengths)]),
    "packed_seq_lengths": lambda *lengths: torch.tensor(lengths),
}


@pytest.mark.parametrize("name", EXPLICIT)
@pytest.mark.parametrize("lengths", [(6,), (2, 4)])
def test_positions_that_restart_inside_an_explicit_document(name, lengths):
    """Attention would go by the one and the mixers by the other."""
    kwargs = {name: EXPLICIT[name](*lengths), "position_ids": positions(2, 1, 3)}
    with pytest.raises(BoundaryError, match=f"restart at token [23] of row 0, and `{name}`"):
        find_documents(kwargs, 1, 6)


def test_positions_that_restart_inside_a_document_of_a_later_row():
    stacked = torch.cat([positions(3, 3), positions(4, 2)])
    with pytest.raises(BoundaryError, match="token 4 of row 1"):
        find_documents({"seq_idx": torch.cat([numbers(3, 3), numbers(6)]), "position_ids": stacked}, 2, 6)


@pytest.mark.parametrize(
    "row",
    [
        [0, 1, 2, 3, 4, 5],
        [4, 5, 6, 7, 8, 9],  # goes on from an earlier part
        [0, 1, 2, 40, 41, 42],  # skips ahead, to train for longer rows
        [0, 1, 2, 0, 0, 0],  # padding behind the end
        [0, 1, 2, 1, 1, 1],
    ],
)
def test_positions_that_number_one_explicit_document(row):
    kwargs = {"seq_idx": numbers(6), "position_ids": torch.tensor([row])}
    assert find_documents(kwargs, 1, 6) == (None, True)


def test_padding_in_front_of_an_explicit_document():
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    kwargs = {"seq_idx": numbers(5), "position_ids": torch.tensor([[1, 1, 0, 1, 2]]), "attention_mask": mask}
    assert find_documents(kwargs, 1, 5) == (None, True)


def test_one_token_documents_are_documents():
    assert lengths_of({"position_ids": positions(1, 1, 1, 6, 1)}, 1, 10) == [1, 1, 1, 6, 1]


@pytest.mark.parametrize("start", [0, 2, 7])
def test_one_document_whatever_its_first_position(start):
    assert lengths_of({"position_ids": torch.arange(start, start + 8)[None]}, 1, 8) is None


@pytest.mark.parametrize("planes", [3, 4])
def test_the_text_plane_alone_decides(planes):
    stacked = positions(3, 4).expand(planes, 1, 7).clone()
    stacked[1:] += torch.arange(7) % 2  # what vision adds to the other planes says nothing of documents
    assert lengths_of({"position_ids": stacked}, 1, 7) == [3, 4]


def seen(before, side, after, start=0):
    """Time, height and width of a text, an image of side x side tokens, and a text."""
    first = torch.arange(start, start + before).expand(3, -1)
    begin = start + before
    height, width = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    image = torch.stack([torch.zeros(side * side, dtype=torch.long), height.flatten(), width.flatten()]) + begin
    return torch.cat([first, image, torch.arange(begin + side, begin + side + after).expand(3, -1)], dim=1)


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("before", [0, 1, 5])
def test_an_image_is_no_boundary(before, start):
    """Time stands still in it, and jumps behind it."""
    row = seen(before, 3, 4, start)[:, None]
    assert lengths_of({"position_ids": row}, 1, row.shape[2]) is None
    assert lengths_of({"position_ids": row, "seq_idx": numbers(row.shape[2])}, 1, row.shape[2]) is None


def test_documents_with_images():
    parts = [seen(5, 3, 4), seen(0, 2, 1), seen(1, 0, 0), seen(1, 0, 0), seen(0, 2, 3), seen(2, 2, 0)]
    lengths = [part.shape[1] for part in parts]
    row = torch.cat(parts, dim=1)[:, None]
    assert lengths_of({"position_ids": row}, 1, sum(lengths)) == lengths
    segments, agree = find_documents({"position_ids": row, "seq_idx": numbers(*lengths)}, 1, sum(lengths))
    assert segments.lengths.tolist() == lengths
    assert agree
    with pytest.raises(BoundaryError, match="token 23 of row 0"):
        find_documents({"position_ids": row, "seq_idx": numbers(18, sum(lengths) - 18)}, 1, sum(lengths))


def test_padded_rows_are_not_packed():
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    assert lengths_of({"position_ids": torch.tensor([[1, 1, 0, 1, 2]]), "attention_mask": mask}, 1, 5) is None


def test_a_mask_of_ones_does_not_cancel_packing():
    assert lengths_of({"position_ids": positions(2, 3), "attention_mask": torch.ones(1, 5)}, 1, 5) == [2, 3]


def test_rows_of_a_batch_are_documents_of_one_flat_row():
    stacked = torch.cat([positions(2, 3), positions(5)])
    assert lengths_of({"position_ids": stacked}, 2, 5) == [2, 3, 5]
    assert lengths_of({"seq_idx": torch.cat([numbers(5), numbers(1, 4)])}, 2, 5) == [5, 1, 4]


def test_tokens_behind_the_last_boundary_are_one_segment():
    assert lengths_of({"cu_seq_lens_q": torch.tensor([0, 3, 5])}, 1, 9) == [3, 2, 4]


def test_empty_documents_are_dropped():
    assert lengths_of({"cu_seq_lens_q": torch.tensor([0, 3, 3, 5, 5])}, 1, 5) == [3, 2]


@pytest.mark.parametrize("bad", [[0, 4, 3, 6], [1, 6], [0, 9], []])
def test_cumulative_lengths_that_contradict_the_batch(bad):
    with pytest.raises(BoundaryError, match="cu_seq_lens_q"):
        find_documents({"cu_seq_lens_q": torch.tensor(bad)}, 1, 6)


def test_boundaries_of_another_length_than_the_batch():
    with pytest.raises(BoundaryError, match=r"\(1, 7\).*\[1, 9\]"):
        find_documents({"seq_idx": numbers(3, 4)}, 1, 9)


def test_positions_that_go_on_from_an_earlier_call_are_one_document():
    assert lengths_of({"position_ids": positions(9)[:, 4:], "past_key_values": object()}, 1, 5) is None


def test_a_million_tokens():
    lengths = [1000] * 500 + [1] * 500_000
    segments, agree = find_documents({"position_ids": positions(*lengths)}, 1, sum(lengths))
    assert segments.count == len(lengths)
    assert agree


def test_restarts_among_the_tokens_a_mask_keeps():
    """A packed row that is padded on the right, with positions of its own behind the end."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0]])
    row = torch.tensor([[0, 1, 0, 1, 2, 0, 0]])
    assert lengths_of({"position_ids": row, "attention_mask": mask}, 1, 7) == [2, 3, 2]


@pytest.mark.parametrize("mask", [torch.ones(1, 1, 5, 5).tril(), {"full_attention": torch.ones(1, 1, 5, 5)}])
def test_a_prepared_mask_does_not_hide_restarts(mask):
    assert lengths_of({"position_ids": positions(2, 3), "attention_mask": mask}, 1, 5) == [2, 3]


def test_what_lies_on_a_device_is_fetched_in_one_copy(monkeypatch):
    batch = {
        "seq_idx": torch.tensor([[0, 0, 1, 1, 1]], dtype=torch.int32),
        "position_ids": torch.tensor([[0, 1, 0, 1, 2]]),
        "attention_mask": torch.ones(1, 5, dtype=torch.bool),
        "inputs_embeds": torch.zeros(1, 5, 2),
    }
    fetched = boundaries._fetch(list(batch.values())[:3])
    for array, tensor in zip(fetched, batch.values(), strict=False):
        assert array.tolist() == tensor.int().tolist()

    copies = []

    class OnDevice(torch.Tensor):
        """A tensor of the host that says it is elsewhere."""

        device = torch.device("cuda", 0)

    def fetch(tensors):
        copies.append(len(tensors))
        return [tensor.as_subclass(torch.Tensor).numpy() for tensor in tensors]

    monkeypatch.setattr(boundaries, "_fetch", fetch)
    segments, agree = find_documents({name: t.as_subclass(OnDevice) for name, t in batch.items()}, 1, 5)
    assert segments.lengths.tolist() == [2, 3]
    assert agree
    assert copies == [3]
