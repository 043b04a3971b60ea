"""The packed rows of a check, and the state of a model around them."""

from __future__ import annotations

import importlib
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from replacements.packing.probe import token_ids
from replacements.packing.runtime import attach, runtime_of

#: Tokens of the two documents. The first ends inside a chunk of 64, and the row crosses the edge of one.
FIRST, SECOND = 37, 31


@dataclass(frozen=True)
class Rows:
    """Two documents that share a row, `[1, FIRST + SECOND]` token ids each.

    Attributes:
        row: The documents.
        neighbour: The same with another first document.
        inside: The same with another beginning of the second document.
    """

    row: torch.Tensor
    neighbour: torch.Tensor
    inside: torch.Tensor

    @classmethod
    def of(cls, model: nn.Module) -> Rows:
        """Rows of random tokens, none of which the config gives a meaning to."""
        special = np.array(sorted(token_ids(model.config.to_dict())), dtype=np.int64)
        vocabulary = np.setdiff1d(np.arange(min(model.config.get_text_config().vocab_size, 4096)), special)
        drawn = np.random.default_rng(0).choice(vocabulary, size=(3, FIRST + SECOND))
        neighbour, inside = drawn[0].copy(), drawn[0].copy()
        neighbour[:FIRST] = drawn[1, :FIRST]
        inside[FIRST : FIRST + SECOND // 2] = drawn[1, FIRST : FIRST + SECOND // 2]
        device = model.get_input_embeddings().weight.device
        return cls(*(torch.from_numpy(ids)[None].to(device) for ids in (drawn[0], neighbour, inside)))


def batch(ids: torch.Tensor, *, seq_idx: bool) -> dict[str, Any]:
    """A row as it reaches a model: `position_ids` that restart, and `seq_idx` where the runtime is to see it."""
    device = ids.device
    positions = torch.cat([torch.arange(FIRST, device=device), torch.arange(SECOND, device=device)])
    made = {"input_ids": ids, "position_ids": positions[None], "use_cache": False}
    if seq_idx:
        made["seq_idx"] = (torch.arange(FIRST + SECOND, device=device) >= FIRST).int()[None]
    return made


def log_probs(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    """Log-probabilities `[T, V]` of a batch of one row, float32."""
    return model(**inputs).logits[0].float().log_softmax(-1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards each module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps libraries from giving notice of what is tried, and random states from moving."""
    states = random.getstate(), np.random.get_state()
    names = ("transformers", "huggingface_hub")
    for name in names:
        importlib.import_module(f"{name}.utils.logging")  # sets the level of its logger when it is imported
    libraries = [logging.getLogger(name) for name in names]
    levels = [library.level for library in libraries]
    for library in libraries:
        library.setLevel(logging.ERROR)
    try:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for library, level in zip(libraries, levels, strict=True):
            library.setLevel(level)
        random.setstate(states[0])
        np.random.set_state(states[1])


@contextmanager
def stock(model: nn.Module) -> Iterator[None]:
    """The model without the hooks of its runtime, if it has one; they are put back in their order."""
    runtime = runtime_of(model)
    handles = [] if runtime is None else runtime._handles
    ours = {handle.id for handle in handles}
    tables = [table for handle in handles if (table := handle.hooks_dict_ref()) is not None]
    kept = [(table, dict(table)) for table in {id(table): table for table in tables}.values()]
    for table, hooks in kept:
        for key in ours & hooks.keys():
            del table[key]
    try:
        yield
    finally:
        for table, hooks in kept:
            table.clear()
            table.update(hooks)


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
