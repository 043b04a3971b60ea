"""Where the time of one operation goes on a GPU: launches, host time, device time, and the chunks it is cut into."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from replacements.kernels.delta_rule import op as delta_op
from replacements.kernels.segments import Segments
from tools.bench_cases import CASES, OURS, Arguments, Way
from tools.bench_measure import Figures, Step, measure

#: Chunk sizes and layouts that are tried for the delta rules.
CHUNKS = [(size, layout) for size in (32, 64, 128) for layout in ("row", "aligned", "shared")]


@dataclass(frozen=True)
class Profile:
    """A forward and backward of one operation.

    Attributes:
        launches: Kernels, copies and fills started on the device.
        host: Milliseconds until everything was launched.
        device: Milliseconds in which the device was busy.
        wall: Milliseconds until everything was done.
        kernels: The ones that took longest: name, count, milliseconds.
    """

    launches: int
    host: float
    device: float
    wall: float
    kernels: list[tuple[str, int, float]]


def step_of(way: Way, given: Arguments, segments: Segments) -> Step:
    """A forward, and a backward by every tensor."""
    tensors = [x for x in given.values() if isinstance(x, torch.Tensor)]

    def step() -> Any:
        out = way(given, segments)
        weight = torch.ones_like(out)
        return lambda: torch.autograd.grad(out, tensors, weight)

    return step


def profile(step: Step) -> Profile:
    """Profile one forward and backward on CUDA, after warming up."""
    for _ in range(3):
        step()()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()()
    host = time.perf_counter() - begin
    torch.cuda.synchronize()
    wall = time.perf_counter() - begin
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    ) as recorded:
        step()()
        torch.cuda.synchronize()
    on_device = [e for e in recorded.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    on_device.sort(key=lambda e: -e.self_device_time_total)
    kernels = [(e.key[:90], e.count, e.self_device_time_total / 1e3) for e in on_device]
    return Profile(sum(k[1] for k in kernels), host * 1e3, sum(k[2] for k in kernels), wall * 1e3, kernels[:16])


def sweep(
    op: str, heads: int, width: int, lengths: list[int], device: torch.device, dtype: torch.dtype, repeats: int
) -> dict[str, Figures]:
    """The torch form of a delta rule with each chunk size and layout, in place of what its cost model chooses."""
    case = CASES[op]
    given = case.arguments(heads, width, sum(lengths), device, dtype)
    way = case.ways(given, Segments(lengths))[OURS]
    found = {"chosen": measure({"chosen": step_of(way, given, Segments(lengths))}, device, repeats)["chosen"]}
    for size, layout in CHUNKS:
        name = f"{size} {layout}"

        def plan(segments: Segments, device: torch.device, *_: Any, size: int = size, layout: Any = layout) -> Any:
            return segments.chunks(size, device, layout)

        with mock.patch.object(delta_op, "delta_rule_plan", plan):
            found[name] = measure({name: step_of(way, given, Segments(lengths))}, device, repeats)[name]
    return found
