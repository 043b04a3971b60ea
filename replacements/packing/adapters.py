"""Reads the calls that transformers' mixers make to their kernels and runs the boundary-aware op instead.

Each adapter takes the caller's arguments under every name that a transformers generation gives them, and the
segments of the row. Arguments that only steer an upstream kernel are dropped; arguments that would tie the row to an
earlier call (a cached state) cannot be honoured and raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replacements.kernels.causal_conv1d import causal_conv1d as conv_op
from replacements.kernels.gated_delta_rule import gated_delta_rule as gated_delta_op
from replacements.packing.families import CONV, GATED_DELTA

if TYPE_CHECKING:
    import torch

    from replacements.kernels.segments import Segments


class PackedCallError(RuntimeError):
    """A kernel was called on a packed row in a way that cannot keep its documents apart."""


def causal_conv1d(segments: Segments, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`causal_conv1d_fn(x | hidden_states [B, D, T], weight [D, W], bias, activation=…)`."""
    call = _bind("causal_conv1d", ("x", "weight", "bias"), args, kwargs, {"hidden_states": "x"})
    _refuse_state(call, "initial_states", "return_final_states", "final_states_out")
    return conv_op(call["x"], call["weight"], call.get("bias"), segments, call.get("activation"))


def gated_delta_rule(segments: Segments, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """`chunk_gated_delta_rule(query, key, value, g=…, beta=…, use_qk_l2norm_in_kernel=…) -> (out, state)`."""
    call = _bind(
        "gated_delta_rule", ("q", "k", "v", "g", "beta"), args, kwargs, {"query": "q", "key": "k", "value": "v"}
    )
    _refuse_state(call, "initial_state", "output_final_state")
    out = gated_delta_op(
        *(call[name] for name in ("q", "k", "v", "g", "beta")),
        segments=segments,
        scale=call.get("scale"),
        qk_l2norm=bool(call.get("use_qk_l2norm_in_kernel", False)),
    )
    return out, None


@dataclass(frozen=True)
class Kernel:
    """A kernel as mixers call it: the ops it runs, and the adapter that runs them with boundaries."""

    ops: tuple[str, ...]
    adapter: Callable[..., Any]


_CONV = Kernel((CONV,), causal_conv1d)
_GATED_DELTA = Kernel((GATED_DELTA,), gated_delta_rule)

#: Every name under which a mixer of some transformers generation calls a kernel.
KERNELS: dict[str, Kernel] = {
    "causal_conv1d_fn": _CONV,
    "chunk_gated_delta_rule": _GATED_DELTA,
    "torch_chunk_gated_delta_rule": _GATED_DELTA,
}


def _bind(
    op: str, names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any], aliases: dict[str, str]
) -> dict[str, Any]:
    call = dict(zip(names, args, strict=False))
    if len(args) > len(names):
        raise PackedCallError(
            f"`{op}` was called with {len(args)} positional arguments, {len(names)} are known. This transformers "
            "release calls its kernel in a new way; please report it, and train with `packing=False` until then."
        )
    for name, value in kwargs.items():
        call[aliases.get(name, name)] = value
    return call


def _refuse_state(call: dict[str, Any], *names: str) -> None:
    for name in names:
        value = call.get(name)
        if value is not None and value is not False:
            raise PackedCallError(
                f"A packed row was run with `{name}`: its documents cannot be continued from, or leave behind, one "
                "state. Call the model with `use_cache=False` and without a cache on packed rows."
            )
