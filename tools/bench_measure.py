"""Time and peak memory of ways to do one thing, taken in turns in one run."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

#: Runs a forward and returns what to call for the backward.
Step = Callable[[], Callable[[], None]]
#: Opens a context.
Around = Callable[[], AbstractContextManager[Any]]

#: A step that takes longer, in seconds, takes one turn only; on a CPU, where nothing is compiled, its first.
_ONCE = {"cpu": 2.0, "cuda": 20.0}


@dataclass(frozen=True)
class Figures:
    """Medians of one way.

    Attributes:
        forward: Seconds.
        backward: Seconds.
        memory: Bytes allocated at the peak of a forward and backward, over those before it.
        turns: How many were taken.
        once: Whether it was one because the step is slow.
    """

    forward: float
    backward: float
    memory: int
    turns: int
    once: bool

    @property
    def total(self) -> float:
        """Seconds of both."""
        return self.forward + self.backward

    def row(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure(
    steps: Mapping[str, Step], device: torch.device, repeats: int, around: Mapping[str, Around] | None = None
) -> dict[str, Figures]:
    """Measure every step: a warm-up, once more for the memory, then `repeats` rounds of one turn each.

    Args:
        steps: What is measured.
        device: Where; it is waited for before the clock is read.
        repeats: Number of rounds.
        around: Contexts in which a step's turns are taken. Entering and leaving them is not measured.
    """
    around = dict.fromkeys(steps, nullcontext) | dict(around or {})
    memory, once = {}, _ONCE[device.type]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for name, step in steps.items():
        with around[name]():
            first = _timed(step, device)  # compiles, builds plans, fills caches
            memory[name] = _peak(step, device)
        if device.type == "cpu" and sum(first) > once:
            times[name].append(first)
    for _ in range(repeats):
        for name, step in steps.items():
            if times[name] and sum(times[name][0]) > once:
                continue
            with around[name]():
                times[name].append(_timed(step, device))
    return {name: _figures(taken, memory[name], once) for name, taken in times.items()}


def _figures(taken: list[tuple[float, float]], memory: int, once: float) -> Figures:
    forward, backward = (statistics.median(part) for part in zip(*taken, strict=True))
    return Figures(forward, backward, memory, len(taken), sum(taken[0]) > once)


def _timed(step: Step, device: torch.device) -> tuple[float, float]:
    _wait(device)
    begin = time.perf_counter()
    backward = step()
    _wait(device)
    middle = time.perf_counter()
    backward()
    _wait(device)
    return middle - begin, time.perf_counter() - middle


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(step: Step, device: torch.device) -> int:
    gc.collect()
    if device.type != "cuda":
        return _peak_on_host(step)
    _wait(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()()
    _wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_host(step: Step) -> int:
    """The largest sum of what torch's allocator gave and took; the profiler sees each."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()()
    held = peak = 0
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
