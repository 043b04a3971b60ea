"""What the guard's probe costs on a model of about 100 million parameters, beside a run of a hundred steps."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import torch

from replacements.packing.runtime import attach, detach_all
from tools import bench_model
from tools.bench_cases import documents
from tools.bench_measure import measure

#: A text model of Qwen3.5 with 107 million parameters.
SETTINGS = bench_model.QWEN3_5 | {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "linear_num_key_heads": 6,
    "linear_num_value_heads": 6,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "vocab_size": 16384,
}
STEPS = 100


@dataclass(frozen=True)
class Cost:
    """The probe's cost; it is to be at most a second, and a hundredth of the run.

    Attributes:
        parameters: Of the model.
        attach: Seconds to attach the runtime and take it off, as the guard does around the probe.
        first: Seconds of the first probe in the process.
        again: Seconds of a later one, the better of two.
        step: Seconds of a training step, forward and backward.
        share: The first probe and the runtime's attachment, in relation to `STEPS` steps.
    """

    parameters: int
    attach: float
    first: float
    again: float
    step: float
    share: float


def cost(settings: dict, device: torch.device, dtype: torch.dtype, tokens: int, count: int, repeats: int) -> Cost:
    """Measures on a new model: the probe once cold and twice warm, then training steps on one packed row."""
    model = bench_model.build(settings, device, dtype)
    begin = time.perf_counter()
    attach(model)
    detach_all()
    attached = time.perf_counter() - begin
    probes = bench_model.probe_cost(model, device)
    attach(model)
    row = bench_model.packed(documents(tokens, count), model.config.vocab_size, device)
    steps = {"step": bench_model.training_step(model, [row])}
    step = measure(steps, device, repeats)["step"].total
    detach_all()
    parameters = sum(p.numel() for p in model.parameters())
    share = (attached + probes["first"]) / (STEPS * step)
    return Cost(parameters, attached, probes["first"], probes["again"], step, share)


def rows(measured: Cost) -> list[tuple[str, object]]:
    """The figures with their names, for a table."""
    named = asdict(measured)
    named[f"share of {STEPS} steps"] = f"{named.pop('share'):.3%}"
    return list(named.items())
