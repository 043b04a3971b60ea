"""Whether what is measured is right: every operation and backend on a device against one token at a time in float64."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from replacements.kernels.segments import Segments
from tools.bench_cases import CASES, NATIVE, OURS, Case

#: One-token documents, edges of chunks of 64, several chunks, and a length that fills none.
LENGTHS = (1, 1, 63, 64, 65, 130, 1, 27)
_NAIVE = {"ssd": "naive_ssd", "selective_scan": "naive_selective_scan"}


@dataclass(frozen=True)
class Error:
    """Relative errors (Euclidean norm) of one way to compute an operation."""

    op: str
    way: str
    dtype: str
    output: float
    gradient: float
    worst: str


def check(device: torch.device, heads: int, width: int, dtypes: tuple[torch.dtype, ...]) -> list[Error]:
    """Every operation in every dtype, by the torch operation and by each backend that works here."""
    return [
        error for case in CASES.values() for dtype in dtypes for error in _errors(case, device, heads, width, dtype)
    ]


def _errors(case: Case, device: torch.device, heads: int, width: int, dtype: torch.dtype) -> list[Error]:
    segments = Segments(LENGTHS)
    given = case.arguments(heads, width, segments.total, device, dtype)
    exact = {n: x.detach().double().cpu() if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    naive = _naive(case.op)
    wanted = _run(lambda x: naive(**x, segments=segments), exact)
    ways = case.ways(given, segments)
    found = []
    for name, way in ways.items():
        if name != OURS and not name.startswith(NATIVE):
            continue
        got = _run(lambda x, way=way: way(x, segments), given)
        errors = {n: _relative(got[n], wanted[n]) for n in wanted}
        output = errors.pop("output")
        worst = max(errors, key=errors.__getitem__)
        found.append(Error(case.op, name, str(dtype).removeprefix("torch."), output, errors[worst], worst))
    return found


def _naive(op: str) -> Any:
    module = importlib.import_module(f"replacements.kernels.{op}.naive")
    return getattr(module, _NAIVE.get(op, op))


def _run(function: Any, call: dict[str, Any]) -> dict[str, torch.Tensor]:
    given = {n: x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) else x for n, x in call.items()}
    tensors = {n: x for n, x in given.items() if isinstance(x, torch.Tensor)}
    out = function(given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(3)).to(out.device, out.dtype)
    grads = torch.autograd.grad(out, list(tensors.values()), weight)
    return {"output": out.detach()} | dict(zip(tensors, grads, strict=True))


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    got, wanted = got.double().cpu(), wanted.double().cpu()
    return float((got - wanted).norm() / wanted.norm().clamp(min=1e-30))
