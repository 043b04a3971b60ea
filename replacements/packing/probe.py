"""Asks the built model whether it keeps documents apart, instead of trusting what it is called.

Two documents run packed in eval mode; then another stands in place of the first. What moves in the second is a leak:
both rows have one shape and run the same kernels, so nothing else may move. The packed row is also compared with the
documents alone. Packed and alone run other kernels, whose rounding differs; how much shows in the first document,
which nothing precedes and no leak can reach.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from replacements.packing.measuring import (
    TWO,
    coarsest_epsilon,
    largest_difference,
    log_probs,
    packed_row,
    random_documents,
    undisturbed,
)
from replacements.packing.tolerances import FACTOR, LOG_PROB, SAME_SHAPE


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
        return max(LOG_PROB, 2 * self.epsilon**0.5 * self.scale)

    @property
    def neighbour_isolated(self) -> bool:
        """Whether the second document is independent of the first."""
        allowed = max(SAME_SHAPE, FACTOR * self.control)
        return self.neighbour <= allowed and self.control <= self.rounding

    @property
    def apart_agrees(self) -> bool:
        """Whether the packed row is the documents alone."""
        allowed = max(LOG_PROB, FACTOR * self.noise, FACTOR * self.epsilon * self.scale)
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
    first, second, other = random_documents(model, (*TWO, TWO[0]))
    with undisturbed(model), torch.no_grad():
        packed = log_probs(model, packed_row([first, second]))
        moved = log_probs(model, packed_row([other, second]))
        alone = log_probs(model, {"input_ids": second[None]})
        split = len(first)
        seen = {
            "neighbour": largest_difference(packed[split:], moved[split:]),
            "apart": largest_difference(packed[split:], alone),
            "scale": largest_difference(packed[:split], moved[:split]),
            "epsilon": coarsest_epsilon(model),
        }
        if seen["neighbour"] > SAME_SHAPE:
            seen["control"] = largest_difference(
                packed[:split], log_probs(model, packed_row([first, other[: len(second)]]))[:split]
            )
        if not Probe(**seen).apart_agrees:
            swapped = log_probs(model, packed_row([second, first]))[: len(second)]
            first_alone = log_probs(model, {"input_ids": first[None]})
            seen["noise"] = max(largest_difference(packed[:split], first_alone), largest_difference(swapped, alone))
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
