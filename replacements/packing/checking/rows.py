"""The packed rows of a check, and the state of a model around them."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from replacements.packing.measuring import TWO, random_documents, same_random_state
from replacements.packing.runtime import attach, runtime_of

#: Tokens of the two documents, and of the part of the second that `Rows.inside` exchanges.
FIRST, SECOND = TWO
BEGINNING = SECOND // 2

Documents = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Rows:
    """Two documents that share a row, `FIRST` and `SECOND` token ids.

    Attributes:
        row: The documents.
        neighbour: The same with another first document.
        inside: The same with another beginning of the second document.
    """

    row: Documents
    neighbour: Documents
    inside: Documents

    @classmethod
    def of(cls, model: nn.Module) -> Rows:
        """Rows of random tokens."""
        first, second, other, beginning = random_documents(model, (FIRST, SECOND, FIRST, BEGINNING))
        return cls((first, second), (other, second), (first, torch.cat([beginning, second[BEGINNING:]])))


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps libraries from giving notice of what is tried, and random states from moving."""
    names = ("transformers", "huggingface_hub")
    for name in names:
        importlib.import_module(f"{name}.utils.logging")  # sets the level of its logger when it is imported
    libraries = [logging.getLogger(name) for name in names]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.setLevel(logging.ERROR)
    try:
        with same_random_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)


@contextmanager
def stock(model: nn.Module) -> Iterator[None]:
    """The model without the hooks of its runtime, if it has one; they are put back in their order."""
    runtime = runtime_of(model)
    with nullcontext() if runtime is None else runtime.suspended():
        yield


@contextmanager
def patched(model: nn.Module) -> Iterator[None]:
    """The model with the runtime, for a while."""
    ours = runtime_of(model) is None
    runtime = attach(model)
    try:
        yield
    finally:
        if ours:
            runtime.detach()
