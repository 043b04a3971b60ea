"""Packed against alone: the documents, the row that holds them, what a model makes of it, and how far apart that is.

Whoever asks whether a model keeps documents apart asks it with these; `tolerances` has the limits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

#: Tokens of two documents. Together they cross the edge of a chunk of 64, and neither fills one.
TWO = (37, 31)
#: So much of a large vocabulary is enough to draw from.
_VOCABULARY = 4096


def random_documents(model: nn.Module, lengths: Sequence[int] = TWO, seed: int = 0) -> list[torch.Tensor]:
    """Documents of random tokens, int64 `[length]` each, on the model's device; no token that has a meaning."""
    special = np.array(sorted(set(token_ids(model.config.to_dict()))), dtype=np.int64)
    vocabulary = np.arange(min(model.config.get_text_config().vocab_size, _VOCABULARY))
    drawn, ids = np.random.default_rng(seed), np.setdiff1d(vocabulary, special)
    device = device_of(model)
    return [torch.from_numpy(drawn.choice(ids, size=length)).to(device) for length in lengths]


def token_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """The tokens that a config gives a meaning to."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from token_ids(value)
        elif str(name).endswith(("token_id", "token_index", "token_ids")):
            yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int) and v >= 0)


def device_of(model: nn.Module) -> torch.device:
    """Where a model takes its token ids."""
    return model.get_input_embeddings().weight.device


def packed_row(documents: Sequence[torch.Tensor], *, seq_idx: bool = True) -> dict[str, torch.Tensor]:
    """The documents in one row `[1, T]`: token ids, and `position_ids` that restart.

    Args:
        documents: int64 `[length]` each.
        seq_idx: Whether the row says where documents start (int32 `[1, T]`), or restarting positions alone do.
    """
    positions = [torch.arange(len(document), device=document.device) for document in documents]
    row = {"input_ids": torch.cat(list(documents))[None], "position_ids": torch.cat(positions)[None]}
    if seq_idx:
        numbers = [torch.full_like(document, i, dtype=torch.int32) for i, document in enumerate(documents)]
        row["seq_idx"] = torch.cat(numbers)[None]
    return row


def log_probs(model: nn.Module, batch: Mapping[str, Any], part: slice = slice(None)) -> torch.Tensor:
    """Log-probabilities `[T, V]` of the first row of a batch, float32 at least.

    Args:
        model: A causal language model.
        batch: What its forward takes. No cache is asked for: with one, transformers does not look for documents in
            `position_ids`.
        part: The tokens of the row that are wanted; of a long row and a large vocabulary, all would be a tensor larger
            than any other.
    """
    logits = model(**batch, use_cache=False).logits[0, part]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def largest_difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference of two tensors; infinite if anything in them is not a finite number."""
    difference = (one.detach() - other.detach()).abs()
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


def coarsest_epsilon(model: nn.Module) -> float:
    """Spacing of the coarsest dtype that the model computes in; a GPU may round float32 products to TF32."""
    tf32 = 2.0**-10
    found = [tf32] if any(p.is_cuda for p in model.parameters()) else []
    device = next((p.device.type for p in model.parameters()), "cpu")
    if torch.is_autocast_enabled(device):
        found.append(torch.finfo(torch.get_autocast_dtype(device)).eps)
    for parameter in model.parameters():
        known = parameter.is_floating_point() and parameter.dtype.itemsize > 1
        found.append(torch.finfo(parameter.dtype if known else torch.bfloat16).eps)
    return max(found, default=torch.finfo(torch.float32).eps)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode; afterwards modes, buffers and random states are what they were. Gradients are left to the caller."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with same_random_state({p.device.index for p in model.parameters() if p.is_cuda}):
        model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    if name in buffers and not torch.equal(buffer, buffers[name]):
                        buffer.copy_(buffers[name])


@contextmanager
def same_random_state(devices: Iterable[int] | None = None) -> Iterator[None]:
    """Random states of Python, numpy and torch are afterwards what they were.

    Args:
        devices: Numbers of the CUDA devices whose states are kept; `None` for all.
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=None if devices is None else sorted(devices)):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
