"""What the runtime costs where it has nothing to do: a decoder of attention alone, rows of one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import transformers
from torch import nn

from replacements.packing.runtime import attach, detach_all
from tools import bench_model

SETTINGS = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
}
#: Rounds for each that the other sections take: what is looked for is smaller than their noise.
ROUNDS = 8
#: Of the row: a short step, so that the hooks' share is not made small by it.
TOKENS = 512


@dataclass(frozen=True)
class Idle:
    """Medians over rounds in each of which every way takes a turn.

    Attributes:
        step: Seconds of a step without the runtime.
        runtime: By which share a step with the runtime takes longer than those without it in the same round.
        noise: By which share the second of those takes longer than the first: the same, measured of nothing.
        hooks: Seconds of the runtime's own calls in a step, without the step.
    """

    step: float
    runtime: float
    noise: float
    hooks: float


def cost(settings: dict[str, int], tokens: int, device: torch.device, dtype: torch.dtype, rounds: int) -> Idle:
    """Measures on a new Llama and one row of `tokens`."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).to(device, dtype).train()
    row = bench_model.packed([tokens], settings["vocab_size"], device)
    plain = {"input_ids": row["input_ids"], "labels": row["labels"]}
    forward = bench_model.training_step(model, [plain])

    def step() -> None:
        forward()()

    ways = [("bare", nullcontext), ("runtime", lambda: _attached(model)), ("again", nullcontext)]
    taken: dict[str, list[float]] = {name: [] for name, _ in ways}
    for number in range(rounds + 1):
        for name, around in ways if number % 2 else ways[::-1]:  # what comes first finds other caches
            with around():
                seconds = _seconds(step, device)
            if number:  # the first round warms up
                taken[name].append(seconds)
    bare, runtime, again = (torch.tensor(taken[name], dtype=torch.float64) for name, _ in ways)
    return Idle(
        step=float(bare.median()),
        runtime=float((2 * runtime / (bare + again)).median()) - 1,
        noise=float((again / bare).median()) - 1,
        hooks=_hooks(model, plain),
    )


def rows(idle: Idle) -> list[tuple[str, str]]:
    """For a table."""
    return [
        ("a step without the runtime", f"{idle.step:.3f} s"),
        ("with the runtime it takes longer by", f"{idle.runtime:+.2%}"),
        ("without it, measured again, by", f"{idle.noise:+.2%}"),
        ("the runtime's own calls", f"{idle.hooks * 1e6:.0f} µs, {idle.hooks / idle.step:.3%} of the step"),
    ]


@contextmanager
def _attached(model: nn.Module) -> Iterator[None]:
    attach(model)
    try:
        yield
    finally:
        detach_all()


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def _hooks(model: nn.Module, batch: dict[str, torch.Tensor], calls: int = 200) -> float:
    """Seconds of both doors' hooks around a model that computes nothing."""

    def call() -> None:
        for _ in range(calls):
            model(**batch)

    def inner(**_: Any) -> None:
        return None

    def outer(input_ids: torch.Tensor, labels: torch.Tensor) -> None:
        model.model(input_ids=input_ids)

    cpu = torch.device("cpu")  # the hooks wait for no device
    with mock.patch.object(model.model, "forward", inner), mock.patch.object(model, "forward", outer):
        without = _seconds(call, cpu)
        with _attached(model):
            return (_seconds(call, cpu) - without) / calls
