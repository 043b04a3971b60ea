"""Small random calls of each operation, on which backends are tried."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..segments import Segments

#: Documents of the tried row: single tokens, one over the edge of a chunk of 64, none that fills chunks; 200 in all.
LENGTHS = (70, 1, 1, 35, 64, 29)

Draw = Callable[..., torch.Tensor]


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _weight(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator) * shape[-1] ** -0.5


def _unit(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator)


def _log_decay(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.rand(shape, generator=generator) * -0.1  # slow, so that a leak shows


def _negative(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return -0.2 - torch.rand(shape, generator=generator)


def _step(shape: tuple[int, ...], generator: torch.Generator, softplus: bool) -> torch.Tensor:
    small = torch.rand(shape, generator=generator) * 0.1 + 0.05
    return small.expm1().log() if softplus else small


@dataclass(frozen=True)
class Argument:
    """How a tensor argument is drawn, and which of its axes is time; ``None``: a parameter, the same for all tokens."""

    draw: Draw
    time: int | None = None


_PER_TOKEN = Argument(_normal, 1)
_PARAMETER = Argument(_weight)

_DELTA = {
    **dict.fromkeys(("q", "k", "v"), _PER_TOKEN),
    "g": Argument(_log_decay, 1),
    "beta": Argument(_unit, 1),
}
ARGUMENTS: dict[str, dict[str, Argument]] = {
    "causal_conv1d": {"x": Argument(_normal, 2), "weight": _PARAMETER, "bias": _PARAMETER},
    "gated_delta_rule": _DELTA,
    "kimi_delta_attention": _DELTA,
    "ssd": {
        **dict.fromkeys(("x", "B", "C", "z"), _PER_TOKEN),
        "dt": Argument(_step, 1),
        "A": Argument(_negative),
        "D": _PARAMETER,
        "dt_bias": _PARAMETER,
    },
    "split_conv1d_ssd": {
        "zxbcdt": _PER_TOKEN,
        "A": Argument(_negative),
        "rmsnorm_weight": Argument(_unit),
        **dict.fromkeys(("conv1d_weight", "conv1d_bias", "dt_bias", "D", "outproj_weight", "outproj_bias"), _PARAMETER),
    },
    "selective_scan": {
        **dict.fromkeys(("u", "B", "C", "z"), Argument(_normal, 2)),
        "delta": Argument(_step, 2),
        "A": Argument(_negative),
        "D": _PARAMETER,
        "delta_bias": _PARAMETER,
    },
}

#: Calls to try where there is none to go by: shapes with one row of one token, and options.
TYPICAL: dict[str, dict[str, Any]] = {
    "causal_conv1d": {"x": (1, 64, 1), "weight": (64, 4), "bias": (64,), "activation": "silu"},
    "gated_delta_rule": {
        **dict.fromkeys(("q", "k", "v"), (1, 1, 2, 64)),
        **dict.fromkeys(("g", "beta"), (1, 1, 2)),
        "scale": None,
        "qk_l2norm": True,
    },
    "kimi_delta_attention": {
        **dict.fromkeys(("q", "k", "v", "g"), (1, 1, 2, 64)),
        "beta": (1, 1, 2),
        "scale": None,
        "qk_l2norm": True,
    },
    "ssd": {
        **{"x": (1, 1, 4, 64), "dt": (1, 1, 4), "A": (4,), "B": (1, 1, 1, 64), "C": (1, 1, 1, 64)},
        **{"D": (4,), "z": None, "dt_bias": (4,), "dt_softplus": True},
    },
    "split_conv1d_ssd": {
        **{"zxbcdt": (1, 1, 644), "conv1d_weight": (384, 4), "conv1d_bias": (384,), "dt_bias": (4,), "A": (4,)},
        **{"D": (4,), "rmsnorm_weight": (256,), "outproj_weight": (64, 256), "headdim": 64, "norm_before_gate": False},
    },
    "selective_scan": {
        **{"u": (1, 64, 1), "delta": (1, 64, 1), "A": (64, 16), "B": (1, 16, 1), "C": (1, 16, 1)},
        **{"D": (64,), "z": (1, 64, 1), "delta_bias": (64,), "delta_softplus": True},
    },
}


@functools.cache
def segments() -> Segments:
    """The documents of the tried row."""
    return Segments(LENGTHS)


def typical(op: str, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """A call of `op` with nothing but shapes in it, for `like`."""
    named = ARGUMENTS[op]
    return {
        name: torch.empty(value, device=device, dtype=dtype) if name in named and value is not None else value
        for name, value in TYPICAL[op].items()
    }


def like(op: str, arguments: Mapping[str, Any], tokens: int = sum(LENGTHS)) -> dict[str, Any]:
    """The same call on one row of `tokens`: widths, dtypes, device and options of `arguments`, other numbers.

    The numbers are drawn on the host by a generator of their own, so no random state of the user's moves.
    """
    generator = torch.Generator().manual_seed(0)
    named = ARGUMENTS[op]
    softplus = bool(arguments.get("dt_softplus") or arguments.get("delta_softplus"))
    drawn = {}
    for name, value in arguments.items():
        if not isinstance(value, torch.Tensor):
            drawn[name] = value
            continue
        argument = named[name]
        shape = list(value.shape)
        if argument.time is not None:
            shape[0], shape[argument.time] = 1, tokens
        extra = {"softplus": softplus} if argument.draw is _step else {}
        number = argument.draw(tuple(shape), generator, **extra)
        drawn[name] = number.to(value.device, value.dtype)
    return drawn


def stretched(op: str, small: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """A sampled call on a row of `tokens`: the same numbers over and over."""

    def stretch(name: str, value: Any) -> Any:
        time = ARGUMENTS[op][name].time if isinstance(value, torch.Tensor) else None
        if time is None:
            return value
        return value.index_select(time, torch.arange(tokens, device=value.device) % value.shape[time])

    return {name: stretch(name, value) for name, value in small.items()}


def signature(op: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two calls share that may use one result of a try: everything but rows, tokens and numbers.

    Made for every call of every layer, so it asks tensors for little. They are on one device.
    """
    named, device = ARGUMENTS[op], None
    parts: list[Any] = [op]
    for name, value in arguments.items():
        argument = named.get(name)
        if argument is None or value is None:
            parts.append(value)
            continue
        device = device or value.device
        shape = value.shape
        # Per token `[B, T, widths…]` or `[B, width, T]`; a parameter keeps all its widths.
        parts += (value.dtype, shape[2:] if argument.time == 1 else shape[1] if argument.time == 2 else shape)
    return (*parts, device)
