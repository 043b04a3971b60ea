"""Asks the built model whether it keeps documents apart, instead of trusting what it is called.

Two documents run packed in eval mode; then another stands in place of the first. What moves in the second is a leak:
both rows have one shape and run the same kernels, so nothing else may move. The packed row is also compared with the
documents alone. Packed and alone run other kernels, whose rounding differs; how much shows in the first document,
which nothing precedes and no leak can reach.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

#: Tokens of the two documents. Together they cross the edge of a chunk of 64, and neither fills one.
LENGTHS = (37, 31)
#: Up to this many nats one row may move: equal shapes and kernels agree to the last bits of a float32.
_SAME_SHAPE_FLOOR = 2e-6
#: Up to this many nats a packed row may be from the documents alone, in any dtype.
_FLOOR = 1e-4
#: A leak is told from rounding when it is this many times larger.
_NOISE_FACTOR = 4.0


@dataclass(frozen=True)
class Probe:
    """What the probe saw, in nats (largest difference of a log-probability).

    Attributes:
        neighbour: How far the second document moved when the first was changed.
        control: How far a first document moved when the second was changed; what moves it is rounding, or a layer
            that looks ahead. Only asked if `neighbour` moved.
        apart: How far the second document is from itself alone.
        noise: How far a first document is from itself alone. Only asked if `apart` is large.
        scale: How far two different documents are from each other.
        epsilon: Spacing of the coarsest dtype in the model.
        skipped: Why the probe could not run, or an empty string.
    """

    neighbour: float = 0.0
    control: float = 0.0
    apart: float = 0.0
    noise: float = 0.0
    scale: float = 0.0
    epsilon: float = 0.0
    skipped: str = ""

    @property
    def rounding(self) -> float:
        """No rounding is larger than this: what moves more is computed otherwise, not rounded otherwise."""
        return max(_FLOOR, 2 * self.epsilon**0.5 * self.scale)

    @property
    def neighbour_isolated(self) -> bool:
        """Whether the second document is independent of the first."""
        allowed = max(_SAME_SHAPE_FLOOR, _NOISE_FACTOR * self.control)
        return self.neighbour <= allowed and self.control <= self.rounding

    @property
    def apart_agrees(self) -> bool:
        """Whether the packed row is the documents alone."""
        allowed = max(_FLOOR, _NOISE_FACTOR * self.noise, _NOISE_FACTOR * self.epsilon * self.scale)
        return self.apart <= allowed and self.noise <= self.rounding

    @property
    def isolated(self) -> bool:
        """Whether the documents stayed apart; true as well if the probe was skipped."""
        return bool(self.skipped) or (self.neighbour_isolated and self.apart_agrees)


def probe(model: nn.Module) -> Probe:
    """Runs the probe on a model to which the runtime is attached.

    Costs two forwards of 68 tokens and one of 31, without gradients; a few more where rounding has to be told from a
    leak. Leaves the model as it was: modes, buffers, random state of Python, numpy and torch.

    Args:
        model: A causal language model; its forward takes `input_ids` and returns `logits` `[B, T, V]`.
    """
    reason = why_not(model)
    if reason:
        return Probe(skipped=reason)
    first, second, other = _documents(model)
    with _undisturbed(model):
        packed = _log_probs(model, _row(first, second))
        moved = _log_probs(model, _row(other, second))
        alone = _log_probs(model, {"input_ids": second[None]})
        split = len(first)
        seen = {
            "neighbour": _largest(packed[split:], moved[split:]),
            "apart": _largest(packed[split:], alone),
            "scale": _largest(packed[:split], moved[:split]),
            "epsilon": coarsest_epsilon(model),
        }
        if seen["neighbour"] > _SAME_SHAPE_FLOOR:
            seen["control"] = _largest(packed[:split], _log_probs(model, _row(first, other[: len(second)]))[:split])
        if not Probe(**seen).apart_agrees:
            swapped = _log_probs(model, _row(second, first))[: len(second)]
            first_alone = _log_probs(model, {"input_ids": first[None]})
            seen["noise"] = max(_largest(packed[:split], first_alone), _largest(swapped, alone))
    return Probe(**seen)


def why_not(model: nn.Module) -> str:
    """Why a model cannot be probed, or an empty string."""
    for parameter in model.parameters():
        if hasattr(parameter, "ds_id"):
            return "its weights are partitioned by DeepSpeed ZeRO-3"
        if parameter.is_meta:
            return "its weights are on the meta device"
        if hasattr(parameter, "device_mesh"):
            return "its weights are sharded"
        if parameter.device.type == "cpu" and getattr(parameter, "quant_state", None) is not None:
            # On CPUs with AVX-512 BF16 bitsandbytes repacks them for good, and training on them is wrong after that.
            return "its 4-bit weights may be repacked for inference by a forward in eval mode"
    return ""


def _documents(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two documents, and another in place of the first; no token that the config gives a meaning to."""
    config = model.config.get_text_config()
    special = set(token_ids(model.config.to_dict()))
    ids = np.setdiff1d(np.arange(min(config.vocab_size, 4096)), np.array(sorted(special), dtype=np.int64))
    drawn = np.random.default_rng(0)
    device = model.get_input_embeddings().weight.device
    first, second, other = (torch.from_numpy(drawn.choice(ids, size=n)).to(device) for n in (*LENGTHS, LENGTHS[0]))
    return first, second, other


def token_ids(config: Mapping[str, Any]) -> Iterator[int]:
    """The tokens that a config gives a meaning to."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from token_ids(value)
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
    return model(**batch, use_cache=False).logits[0].float().log_softmax(-1)


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    difference = (one - other).abs()
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
