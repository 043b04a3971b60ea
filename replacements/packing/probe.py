"""Asks the built model whether it keeps documents apart, instead of trusting what it is called.

Two documents run packed in eval mode; then the first is changed. What moves in the second is a leak. The packed result
is also compared with the documents alone. Both are read against the model's own noise: how much a document's
log-probabilities differ when only the shape of the batch does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

#: Tokens of the two documents. Together they cross the edge of a chunk of 64, and neither fills one.
LENGTHS = (41, 38)
#: Below this many nats nothing is called a leak, in any dtype.
_FLOOR = 1e-4
#: A leak is told from noise when it is this many times larger.
_NOISE_FACTOR = 4.0


@dataclass(frozen=True)
class Probe:
    """What the probe saw, in nats (largest difference of a log-probability).

    Attributes:
        neighbour: How far the second document moved when the first was changed.
        apart: How far the packed documents are from the documents alone.
        noise: How far a document alone is from itself in another batch shape.
        skipped: Why the probe could not run, or an empty string.
    """

    neighbour: float = 0.0
    apart: float = 0.0
    noise: float = 0.0
    skipped: str = ""

    @property
    def allowed(self) -> float:
        """Differences up to here are noise."""
        return max(_FLOOR, _NOISE_FACTOR * self.noise)

    @property
    def isolated(self) -> bool:
        """Whether the documents stayed apart; true as well if the probe was skipped."""
        return bool(self.skipped) or (self.neighbour <= self.allowed and self.apart <= self.allowed)


def probe(model: nn.Module) -> Probe:
    """Runs the probe on a model to which the runtime is attached.

    Costs four forwards of at most 82 tokens without gradients. Leaves the model as it was: modes, buffers, random
    state of Python, numpy and torch.

    Args:
        model: A causal language model; its forward takes `input_ids` and returns `logits` `[B, T, V]`.
    """
    reason = _why_not(model)
    if reason:
        return Probe(skipped=reason)
    first, second, other = _documents(model)
    with _undisturbed(model):
        packed = _log_probs(model, _row(first, second))[0]
        moved = _log_probs(model, _row(other, second))[0]
        alone = [_log_probs(model, {"input_ids": d[None]})[0] for d in (first, second)]
        # The same document twice in a batch: another shape, the same numbers to compute.
        doubled = _log_probs(model, {"input_ids": second[None].repeat(2, 1)})[0]
    split = len(first)
    return Probe(
        neighbour=_largest(packed[split:], moved[split:]),
        apart=_largest(packed, torch.cat(alone)),
        noise=_largest(doubled, alone[1]),
    )


def _why_not(model: nn.Module) -> str:
    for parameter in model.parameters():
        if parameter.is_meta:
            return "its weights are on the meta device"
        if hasattr(parameter, "ds_id"):
            return "its weights are partitioned by DeepSpeed ZeRO-3"
        if isinstance(parameter, torch.distributed.tensor.DTensor) if torch.distributed.is_available() else False:
            return "its weights are sharded"
    return ""


def _documents(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two documents, and another in place of the first; no token that the config gives a meaning to."""
    config = model.config.get_text_config()
    special = set(_token_ids(model.config.to_dict()))
    ids = np.setdiff1d(
        np.arange(min(config.vocab_size, 4096)), np.fromiter(special, dtype=np.int64, count=len(special))
    )
    drawn = np.random.default_rng(0)
    device = model.get_input_embeddings().weight.device
    draw = [torch.from_numpy(drawn.choice(ids, size=n)).to(device) for n in (*LENGTHS, LENGTHS[0])]
    return draw[0], draw[1], draw[2]


def _token_ids(config: dict[str, Any]) -> Iterator[int]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _token_ids(value)
        elif str(name).endswith(("token_id", "token_index", "token_ids")):
            yield from (v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int) and v >= 0)


def _row(*documents: torch.Tensor) -> dict[str, torch.Tensor]:
    numbers = [torch.full_like(d, i, dtype=torch.int32) for i, d in enumerate(documents)]
    positions = [torch.arange(len(d), device=d.device) for d in documents]
    return {
        "input_ids": torch.cat(documents)[None],
        "position_ids": torch.cat(positions)[None],
        "seq_idx": torch.cat(numbers)[None],
    }


def _log_probs(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(**batch, use_cache=False).logits.float().log_softmax(-1)


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one - other).abs()
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards everything a forward could have changed is as before."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.no_grad())
        model.eval()
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
            for name, buffer in model.named_buffers():
                if name in buffers and not torch.equal(buffer, buffers[name]):
                    buffer.copy_(buffers[name])
            random.setstate(python_state)
            np.random.set_state(numpy_state)
