"""What every TRL release emits, completed to the same batch."""

import pickle
from dataclasses import dataclass

import pytest
import torch

from replacements.packing.boundaries import BoundaryError
from replacements.packing.collator import (
    check_lengths,
    complete,
    refuse_packed_rows,
    request_boundaries,
    requests_boundaries,
)


@dataclass
class Collator:
    """Stands in for TRL's, which is a dataclass too."""

    padding_free: bool = True


def asking(**settings):
    collator = Collator(**settings)
    request_boundaries(collator)
    return collator


EXAMPLES = [
    {"input_ids": [1, 2, 3, 4, 5, 6, 7], "seq_lengths": [3, 4]},
    {"input_ids": [11, 12, 13, 14], "seq_lengths": [1, 3]},
]


def emitted(release, pad=0):
    """The flattened row as releases emit it, and `pad` tokens of padding behind."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 14] + [0] * pad])
    batch = {"input_ids": ids, "labels": ids.clone()}
    batch["labels"][0, 11:] = -100
    if release == "no boundary":
        batch["attention_mask"] = torch.ones_like(ids)
        return batch
    batch["position_ids"] = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2] + [0] * pad])
    batch["labels"][batch["position_ids"] == 0] = -100
    if release == "cumulative":
        ends = torch.tensor([0, 3, 7, 8, 11, *range(12, 12 + pad)], dtype=torch.int32)
        batch |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 4, "max_length_k": 4}
        batch["seq_idx"] = torch.zeros_like(ids, dtype=torch.int32)
    return batch


@pytest.mark.parametrize("release", ["no boundary", "positions", "cumulative"])
@pytest.mark.parametrize("pad", [0, 5])
def test_every_release_gives_the_same_batch(release, pad):
    batch = complete(asking(), EXAMPLES, emitted(release, pad))
    tail = [4] * pad
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, *tail]]
    assert batch["seq_idx"].dtype == torch.int32
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2, *range(pad)]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, 6, 7, -100, -100, 13, 14] + [-100] * pad]
    assert "attention_mask" not in batch


def test_what_depends_on_the_documents_in_shape_does_not_travel():
    """Batches are concatenated and sliced along rows when one process reads for all."""
    batch = complete(asking(), EXAMPLES, emitted("cumulative", pad=5))
    assert {value.shape for value in batch.values()} == {(1, 16)}


def test_flattened_examples_without_lengths_are_documents():
    examples = [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}]
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    batch = complete(asking(), examples, {"input_ids": ids, "labels": ids.clone()})
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1]]


def test_packed_rows_of_a_padded_collator():
    """Packed evaluation beside padded training: rows with several documents, padded to one length."""
    ids = torch.tensor([[1, 2, 3, 4, 5, 6, 7], [11, 12, 13, 14, 0, 0, 0]])
    labels = ids.clone()
    labels[1, 4:] = -100
    batch = {"input_ids": ids, "labels": labels, "attention_mask": (ids > 0).long()}
    batch = complete(asking(padding_free=False), EXAMPLES, batch)
    assert batch["seq_idx"].tolist() == [[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 2, 2, 2]]
    assert batch["labels"].tolist() == [[-100, 2, 3, -100, 5, 6, 7], [-100, -100, 13, 14, -100, -100, -100]]
    assert "attention_mask" not in batch


def test_rows_of_one_document_are_left_as_they_are():
    batch = {"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 3), "attention_mask": torch.ones(2, 3)}
    before = dict(batch)
    examples = [{"input_ids": [1, 1, 1]}, {"input_ids": [1, 1, 1], "seq_lengths": [3]}]
    assert complete(asking(padding_free=False), examples, batch) == before


def test_a_collator_whose_trainer_did_not_ask_is_left_alone():
    batch = emitted("positions")
    assert complete(Collator(), EXAMPLES, batch) is batch
    assert "seq_idx" not in batch


def test_empty_documents_are_dropped():
    examples = [{"input_ids": [1, 2, 3], "seq_lengths": [0, 2, 0, 1]}]
    ids = torch.tensor([[1, 2, 3]])
    batch = complete(asking(), examples, {"input_ids": ids, "labels": ids.clone()})
    assert batch["seq_idx"].tolist() == [[0, 0, 1]]


def test_lengths_that_do_not_add_up():
    with pytest.raises(BoundaryError, match="add up to 5 but it has 3"):
        complete(asking(), [{"input_ids": [1, 2, 3], "seq_lengths": [2, 3]}], {"input_ids": torch.ones(1, 3)})


@pytest.mark.parametrize("lengths", [[2, 3], [4, -1], [], None])
def test_lengths_are_checked_before_they_are_used(lengths):
    examples = [*EXAMPLES, {"input_ids": [1, 2, 3], "seq_lengths": lengths}]
    with pytest.raises(BoundaryError, match="seq_lengths"):
        check_lengths(asking(), examples)
    check_lengths(Collator(), examples)
    watched = Collator()
    refuse_packed_rows(watched)
    check_lengths(watched, examples)


def test_the_request_survives_pickling():
    assert requests_boundaries(pickle.loads(pickle.dumps(asking())))
