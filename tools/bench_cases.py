"""What is measured: each operation at a given width, by every way there is to compute it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from replacements.kernels.backends import samples, table
from replacements.kernels.backends.registry import choose
from replacements.kernels.segments import Segments

Arguments = dict[str, Any]
#: Computes an operation for the documents of a row.
Way = Callable[[Arguments, Segments], torch.Tensor]

STOCK, APART, OURS, NATIVE = "stock fallback", "one scan per document", "ours", "accelerated"


@dataclass(frozen=True)
class Case:
    """An operation, its arguments' shapes at a width, and how transformers' fallback is called."""

    op: str
    place: str
    shapes: Callable[[int, int], dict[str, Any]]
    stock: Callable[[Callable[..., Any], Arguments], Any]

    def arguments(self, heads: int, width: int, tokens: int, device: torch.device, dtype: torch.dtype) -> Arguments:
        """Random arguments of one row of `tokens`, each requiring a gradient; decays and parameters in float32."""
        exact = ("A", "D", "g", "dt_bias", "delta_bias")
        shapes = {
            name: torch.empty(value, device=device, dtype=torch.float32 if name in exact else dtype)
            if isinstance(value, tuple)
            else value
            for name, value in self.shapes(heads, width).items()
        }
        drawn = samples.like(self.op, shapes, tokens)
        return {name: x.requires_grad_() if isinstance(x, torch.Tensor) else x for name, x in drawn.items()}

    def fallback(self) -> Callable[..., Any] | None:
        """Transformers' own torch function behind its dispatch; None where this release has none."""
        module, _, name = self.place.partition(":")
        try:
            found = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError:
            return None
        return None if found is None else inspect.unwrap(found)

    def ways(self, given: Arguments, segments: Segments) -> dict[str, Way]:
        """Every way to compute the operation on calls like this one."""
        found: dict[str, Way] = {}
        fallback = self.fallback()
        if fallback is not None:
            found[STOCK] = lambda given, segments: _output(self.stock(fallback, given))
            found[APART] = lambda given, segments: self._apart(fallback, given, segments)
        found[OURS] = lambda given, segments: table.OPS[self.op](**given, segments=segments)
        backend = choose(self.op, given, segments)
        if backend is not None:
            found[f"{NATIVE} ({backend.name})"] = lambda given, segments: backend.call(
                backend.kernel, given, segments, {}
            )
        return found

    def _apart(self, fallback: Callable[..., Any], given: Arguments, segments: Segments) -> torch.Tensor:
        named, outputs = samples.ARGUMENTS[self.op], []
        for begin, length in zip(segments.offsets.tolist(), segments.lengths.tolist(), strict=False):
            document = {
                name: x.narrow(named[name].time, begin, length)
                if isinstance(x, torch.Tensor) and named[name].time is not None
                else x
                for name, x in given.items()
            }
            outputs.append(_output(self.stock(fallback, document)))
        return torch.cat(outputs, 2 if self.op in ("causal_conv1d", "selective_scan") else 1)


def _output(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


def _conv_shapes(heads: int, width: int) -> dict[str, Any]:
    channels = 3 * heads * width
    return {"x": (1, channels, 1), "weight": (channels, 4), "bias": (channels,), "activation": "silu"}


def _delta_shapes(heads: int, width: int) -> dict[str, Any]:
    shapes: dict[str, Any] = dict.fromkeys(("q", "k", "v"), (1, 1, heads, width))
    return shapes | {"g": (1, 1, heads), "beta": (1, 1, heads), "scale": None, "qk_l2norm": True}


def _kda_shapes(heads: int, width: int) -> dict[str, Any]:
    return _delta_shapes(heads, width) | {"g": (1, 1, heads, width)}


def _ssd_shapes(heads: int, width: int) -> dict[str, Any]:
    parameters = {"A": (heads,), "D": (heads,), "dt_bias": (heads,)}
    groups = {"B": (1, 1, 1, 128), "C": (1, 1, 1, 128)}
    return {"x": (1, 1, heads, width), "dt": (1, 1, heads), **groups, **parameters, "dt_softplus": True}


def _scan_shapes(heads: int, width: int) -> dict[str, Any]:
    channels = heads * width
    rows = {"u": (1, channels, 1), "delta": (1, channels, 1), "B": (1, 16, 1), "C": (1, 16, 1)}
    return {**rows, "A": (channels, 16), "D": (channels,), "delta_bias": (channels,), "delta_softplus": True}


def _conv(function: Callable[..., Any], x: Arguments) -> Any:
    return function(x["x"], x["weight"], x["bias"], activation=x["activation"])


def _delta(function: Callable[..., Any], x: Arguments) -> Any:
    return function(x["q"], x["k"], x["v"], g=x["g"], beta=x["beta"], use_qk_l2norm_in_kernel=True)


def _ssd(function: Callable[..., Any], x: Arguments) -> Any:
    options = {name: x[name] for name in ("D", "dt_bias", "dt_softplus")}
    return function(x["x"], x["dt"], x["A"], x["B"], x["C"], chunk_size=256, **options)


def _scan(function: Callable[..., Any], x: Arguments) -> Any:
    return function(x["u"], x["delta"], *(x[n] for n in ("A", "B", "C", "D")), None, x["delta_bias"], True)


_MODELS = "transformers.models"
CASES: dict[str, Case] = {
    case.op: case
    for case in (
        Case("causal_conv1d", f"{_MODELS}.qwen3_5.modeling_qwen3_5:causal_conv1d_fn", _conv_shapes, _conv),
        Case(
            "gated_delta_rule",
            f"{_MODELS}.qwen3_5.modeling_qwen3_5:torch_chunk_gated_delta_rule",
            _delta_shapes,
            _delta,
        ),
        Case(
            "kimi_delta_attention",
            f"{_MODELS}.kimi_linear.modeling_kimi_linear:chunk_kimi_delta_attention",
            _kda_shapes,
            _delta,
        ),
        Case("ssd", f"{_MODELS}.bamba.modeling_bamba:mamba2_chunk_scan", _ssd_shapes, _ssd),
        Case("selective_scan", f"{_MODELS}.mamba.modeling_mamba:mamba_selective_scan", _scan_shapes, _scan),
    )
}


def documents(tokens: int, count: int, seed: int = 0) -> list[int]:
    """Lengths of `count` documents that fill a row: log-normal, as real corpora are, none empty."""
    if count == 1:
        return [tokens]
    drawn = np.random.default_rng(seed).lognormal(sigma=0.8, size=count)
    lengths = 1 + np.floor(drawn / drawn.sum() * (tokens - count)).astype(int)
    lengths[0] += tokens - lengths.sum()
    return lengths.tolist()
