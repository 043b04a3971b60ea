"""Chooses the backend of a call, once per kind of call, and remembers how each did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..segments import Segments
from . import samples, table
from .backend import Backend, NotInstalled
from .selftest import Outcome, attempt

logger = logging.getLogger("patcher")

_lock = threading.RLock()
_outcomes: dict[tuple[Backend, Any], Outcome] = {}
_chosen: dict[Any, Backend | None] = {}
_logged: set[tuple[str, str]] = set()
_NO_HINTS: Mapping[str, Any] = {}


@dataclass(frozen=True)
class State:
    """A backend on a device.

    Attributes:
        name: Package and kernel.
        op: The operation it computes.
        state: ``"in use"``; ``"works"``, and another one is preferred; ``"failed"``; ``"not installed"``; or
            ``"not on cpu"``, where no backend is used.
        detail: Why it failed; or how far it is from the torch operation.
    """

    name: str
    op: str
    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state}: {self.detail}" if self.detail else self.state


def run(
    op: str, arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any] = _NO_HINTS
) -> torch.Tensor:
    """Run `op` by the first backend that can, else by the torch operation.

    Args:
        op: A key of `table.OPS`.
        arguments: The torch operation's arguments by name, without the segments.
        segments: The documents of the row.
        hints: What kernels ask for and the torch operation chooses itself, such as ``chunk_size``.
    """
    out = accelerated(op, arguments, segments, hints)
    return table.OPS[op](**arguments, segments=segments) if out is None else out


def accelerated(
    op: str, arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any] = _NO_HINTS
) -> torch.Tensor | None:
    """Run `op` by the first backend that can; None where there is none."""
    backend = _choose(op, arguments, segments, hints)
    return None if backend is None else backend.call(backend.kernel, arguments, segments, hints)


@torch.compiler.disable
def choose(
    op: str, arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any] = _NO_HINTS
) -> Backend | None:
    """The first backend of `op` that works for calls like this one, or None."""
    return _choose(op, arguments, segments, hints)


def _choose(op: str, arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]) -> Backend | None:
    key = samples.signature(op, arguments)
    if key[-1].type in table.NEVER_ON:
        return None
    if key not in _chosen:
        with _lock:
            if key not in _chosen:
                tried = (b for b in _backends(op) if _try(b, arguments, segments, hints).error is None)
                _chosen[key] = next(tried, None)
    return _chosen[key]


def states(device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> list[State]:
    """Every backend and how it does on a device, tried on typical calls.

    Args:
        device: Where; the first accelerator if None, else the CPU.
        dtype: Of the tensors; bfloat16 on an accelerator if None.
    """
    device = torch.device(device) if device is not None else _accelerator()
    dtype = dtype or torch.bfloat16
    found: list[State] = []
    with _lock:
        for backend in table.BACKENDS:
            taken = any(state.op == backend.op and state.state == "in use" for state in found)
            found.append(_state(backend, device, dtype, taken))
    return found


def self_test(device: torch.device | str | None = None) -> dict[str, str]:
    """`states` in words: backend to outcome."""
    return {state.name: str(state) for state in states(device)}


def reset() -> None:
    """Forget every outcome, so that the next call tries again."""
    with _lock:
        _outcomes.clear()
        _chosen.clear()
        _logged.clear()
        for backend in table.BACKENDS:
            vars(backend).pop("kernel", None)


def _state(backend: Backend, device: torch.device, dtype: torch.dtype, taken: bool) -> State:
    if device.type in table.NEVER_ON:
        try:
            _ = backend.kernel
        except Exception as error:  # as in a try: whatever importing a kernel raises
            return _broken(backend, error)
        return State(backend.name, backend.op, f"not on {device.type}")
    outcome = _try(backend, samples.typical(backend.op, device, dtype), samples.segments(), _NO_HINTS)
    if outcome.error is not None:
        return _broken(backend, outcome.error)
    detail = f"within {outcome.largest:.0e} of the torch operation, forward and backward"
    return State(backend.name, backend.op, "works" if taken else "in use", detail)


def _broken(backend: Backend, error: Exception) -> State:
    if isinstance(error, NotInstalled):
        return State(backend.name, backend.op, "not installed")
    return State(backend.name, backend.op, "failed", _line(error))


def _try(backend: Backend, arguments: Mapping[str, Any], segments: Segments, hints: Mapping[str, Any]) -> Outcome:
    key = (backend, samples.signature(backend.op, arguments))
    if key not in _outcomes:
        _outcomes[key] = attempt(backend, arguments, segments, hints)
        _log(backend, _device(arguments), _outcomes[key].error)
    return _outcomes[key]


def _log(backend: Backend, device: torch.device, error: Exception | None) -> None:
    if error is None or isinstance(error, NotInstalled):
        return
    reason = (backend.name, _line(error))
    if reason not in _logged:
        _logged.add(reason)
        logger.warning(
            "The kernel %s is not used on packed rows: its self test on %s failed (%s). The torch operation runs "
            "instead, slower and right.",
            backend.name,
            device,
            reason[1],
        )


def _backends(op: str) -> list[Backend]:
    return [backend for backend in table.BACKENDS if backend.op == op]


def _device(arguments: Mapping[str, Any]) -> torch.device:
    return next(x.device for x in arguments.values() if isinstance(x, torch.Tensor))


def _accelerator() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
