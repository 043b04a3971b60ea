"""Boundaries in columns that nobody reads."""

import pytest
from datasets import Dataset, IterableDataset

from replacements.packing.columns import unread_boundaries

IDS = {"input_ids": [[1, 2, 3], [4, 5, 6]]}


@pytest.mark.parametrize(
    ("name", "one", "several"),
    [
        ("position_ids", [0, 1, 2], [0, 0, 1]),
        ("position_ids", [4, 5, 9], [0, 1, 0]),
        ("seq_idx", [0, 0, 0], [0, 0, 1]),
        ("cu_seqlens", [0, 3], [0, 1, 3]),
        ("cu_seq_lens_q", [0, 3], [0, 1, 3]),
        ("packed_seq_lengths", [3], [1, 2]),
    ],
)
def test_rows_of_several_documents(name, one, several):
    assert unread_boundaries(Dataset.from_dict(IDS | {name: [one, one]})) is None
    packed = Dataset.from_dict(IDS | {name: [one, several]})
    assert unread_boundaries(packed) == name
    assert unread_boundaries(packed.with_format("torch")) == name
    assert unread_boundaries(packed.add_column("seq_lengths", [[3], [1, 2]])) is None, "which is read"


def test_a_transform_of_the_users_is_not_run():
    def transform(rows):
        raise AssertionError("it was run")

    packed = Dataset.from_dict(IDS | {"position_ids": [[0, 1, 0], [0, 1, 2]]}).with_transform(transform)
    assert unread_boundaries(packed) == "position_ids"


@pytest.mark.parametrize("value", [None, "text", [[0, 1], [0, 1]], 3])
def test_a_column_of_another_kind(value):
    assert unread_boundaries(Dataset.from_dict(IDS | {"position_ids": [value, None]})) is None


def test_a_stream_is_not_read():
    def unread():
        raise AssertionError("the stream was read")
        yield

    features = Dataset.from_dict(IDS | {"position_ids": IDS["input_ids"]}).features
    assert unread_boundaries(IterableDataset.from_generator(unread, features=features)) is None


@pytest.mark.parametrize("dataset", [None, [], [{"input_ids": [1], "position_ids": [0]}]])
def test_what_is_no_dataset(dataset):
    assert unread_boundaries(dataset) is None
