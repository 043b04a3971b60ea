"""Columns of a dataset that say where documents start, and that TRL drops: its collator reads `seq_lengths` alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

#: How many rows are looked at. Rows that are packed hold several documents nearly all.
_ROWS = 8

#: Whether a row's value means several documents.
_SEVERAL: dict[str, Callable[[np.ndarray], bool]] = {
    "position_ids": lambda values: values.ndim == 1 and bool((np.diff(values) <= 0).any()),
    "seq_idx": lambda values: values.ndim == 1 and bool((np.diff(values) != 0).any()),
    "cu_seqlens": lambda values: values.size > 2,
    "cu_seq_lens_q": lambda values: values.size > 2,
    "packed_seq_lengths": lambda values: values.size > 1,
}


def unread_boundaries(dataset: Any) -> str | None:
    """The column by which rows of a dataset hold several documents, unless `seq_lengths` says so as well.

    A stream is never read to find out. Of others a few rows are read, past any transform of the user's.
    """
    columns = getattr(dataset, "column_names", None) or ()
    if "input_ids" not in columns or "seq_lengths" in columns or not hasattr(dataset, "__len__"):
        return None
    for name, several in _SEVERAL.items():
        if name in columns and any(map(several, _first_rows(dataset, name))):
            return name
    return None


def _first_rows(dataset: Any, name: str) -> list[np.ndarray]:
    column = dataset.with_format(None).select_columns([name])[:_ROWS][name]
    return [np.asarray(value) for value in column if isinstance(value, list)]
