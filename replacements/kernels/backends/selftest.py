"""Tries a backend: a small forward and backward must agree with the torch operation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..segments import Segments
from . import samples
from .backend import Backend
from .table import OPS

#: Largest error of the output and of each gradient, relative in the Euclidean norm. Kernels multiply float32 in tf32.
#: A leak between the documents of the tried row is above 0.1.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 5e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Disagreement(RuntimeError):
    """A kernel ran and did not compute what the torch operation does."""


@dataclass(frozen=True)
class Outcome:
    """How a try went.

    Attributes:
        error: Why the backend cannot be used, or None.
        largest: The largest relative error of the output and the gradients, 0 if it did not run to the end.
    """

    error: Exception | None = None
    largest: float = 0.0


def attempt(backend: Backend, arguments: Mapping[str, Any], row: Segments, hints: Mapping[str, Any]) -> Outcome:
    """Try `backend` on a call like `arguments`, in a thread of its own.

    Kernels that tune themselves keep what suits the first row they see, whatever its size. So they are shown a row as
    long as the caller's before the small one that is compared.

    A fresh thread has none of what may surround the caller's forward: autocast, inference mode, hooks on saved tensors
    (checkpointing counts what is saved), dispatch modes.
    """
    outcome: list[Outcome] = []

    def work() -> None:
        try:
            outcome.append(Outcome(largest=_compare(backend, arguments, row, hints)))
        except Exception as error:  # kernels fail in their own ways: missing drivers, symbols, compilers, memory
            outcome.append(Outcome(error))

    device = next(x.device for x in arguments.values() if isinstance(x, torch.Tensor))
    thread = threading.Thread(target=_on(device, work), name="backend self test")
    thread.start()
    thread.join()
    return outcome[0]


def _on(device: torch.device, work: Callable[[], None]) -> Callable[[], None]:
    if device.type != "cuda":
        return work

    def run() -> None:
        with torch.cuda.device(device):
            work()

    return run


def _compare(backend: Backend, arguments: Mapping[str, Any], row: Segments, hints: Mapping[str, Any]) -> float:
    kernel = backend.kernel  # first: what cannot be imported need not be given tensors
    call = samples.like(backend.op, arguments)
    whole = Segments(row.lengths)
    _forward_backward(
        lambda **given: backend.call(kernel, given, whole, hints), samples.stretched(backend.op, call, whole.total)
    )
    got = _forward_backward(lambda **given: backend.call(kernel, given, samples.segments(), hints), call)
    exact = {name: _exact(value) for name, value in call.items()}
    wanted = _forward_backward(lambda **given: OPS[backend.op](**given, segments=samples.segments()), exact)
    tolerance = max(TOLERANCE[x.dtype] for x in call.values() if isinstance(x, torch.Tensor))
    errors = {name: _relative(got[name], wanted[name]) for name in wanted}
    worst = max(errors, key=errors.__getitem__)
    if not errors[worst] <= tolerance:
        raise Disagreement(
            f"{worst} differs from the torch operation's by {errors[worst]:.1e}, relatively, on a small packed row; "
            f"{tolerance:.0e} is rounding"
        )
    return errors[worst]


def _forward_backward(op: Callable[..., torch.Tensor], call: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    given = {n: x.detach().requires_grad_() if isinstance(x, torch.Tensor) else x for n, x in call.items()}
    inputs = {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    out = op(**given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.device, out.dtype)
    grads = torch.autograd.grad(out, list(inputs.values()), weight)
    return {"the output": out} | {f"the gradient of {name}": g for name, g in zip(inputs, grads, strict=True)}


def _exact(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_half else value


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if got.shape != wanted.shape:
        raise Disagreement(f"the kernel returned {tuple(got.shape)} where {tuple(wanted.shape)} was asked for")
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-30))
