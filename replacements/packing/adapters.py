"""Reads the calls that transformers' mixers make to their kernels and runs the boundary-aware op instead.

Each adapter takes the caller's arguments under every name that a transformers generation gives them, and the
segments of the row, and hands them to the first backend that can, else to the torch op. Arguments that only steer an
upstream kernel are dropped. A state from an earlier call cannot be honoured and raises; a final state that older mixers
always ask for, and use with a cache alone, is `None`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replacements.kernels import backends
from replacements.packing.families import CONV, GATED_DELTA, KDA, SELECTIVE_SCAN, SSD

if TYPE_CHECKING:
    import torch

    from replacements.kernels.segments import Segments


class PackedCallError(RuntimeError):
    """A kernel was called on a packed row in a way that cannot keep its documents apart."""


def causal_conv1d(segments: Segments, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`causal_conv1d_fn(x | hidden_states [B, D, T], weight [D, W], bias, activation=…)`."""
    call = _bind("causal_conv1d", ("x", "weight", "bias"), args, kwargs, {"hidden_states": "x"})
    _refuse_state(call, "initial_states", "return_final_states", "final_states_out")
    return backends.run(CONV, {name: call.get(name) for name in ("x", "weight", "bias", "activation")}, segments)


def gated_delta_rule(segments: Segments, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """`chunk_gated_delta_rule(query, key, value, g=…, beta=…, use_qk_l2norm_in_kernel=…) -> (out, state)`."""
    call = _bind("gated_delta_rule", _DELTA_ARGUMENTS, args, kwargs, _DELTA_ALIASES)
    _refuse_state(call, "initial_state", "output_final_state")
    return backends.run(GATED_DELTA, _delta_arguments(call), segments), None


def kimi_delta_attention(segments: Segments, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    """`chunk_kimi_delta_attention(query, key, value, g=…, beta=…, …) -> (out, state)`."""
    call = _bind("kimi_delta_attention", _DELTA_ARGUMENTS, args, kwargs, _DELTA_ALIASES)
    _refuse_state(call, "initial_state", "output_final_state")
    return backends.run(KDA, _delta_arguments(call), segments), None


def ssd(segments: Segments, *args: Any, **kwargs: Any) -> torch.Tensor | tuple[torch.Tensor, None]:
    """`mamba_chunk_scan_combined(x | hidden_states [B, T, H, P], dt, A, B, C, chunk_size=…, D=…, z=…, …)`."""
    names = ("x", "dt", "A", "B", "C", "chunk_size")
    call = _bind("ssd", names, args, kwargs, {"hidden_states": "x"})
    _refuse_state(call, "initial_states", "return_varlen_states")
    options = {name: call[name] for name in ("D", "z", "dt_bias", "dt_softplus", "dt_limit") if name in call}
    if "dt_limit" in options:  # a list, if the config was read from JSON
        options["dt_limit"] = tuple(options["dt_limit"])
    out = backends.run(SSD, {**_required(call, names[:-1]), **options}, segments, _chunk_size(call))
    return (out, None) if call.get("return_final_states") else out


def split_conv1d_ssd(segments: Segments, *args: Any, **kwargs: Any) -> torch.Tensor | None:
    """`mamba_split_conv1d_scan_combined(zxbcdt [B, T, …], conv1d_weight, conv1d_bias, dt_bias, A, D, chunk_size, …)`.

    Without a backend `None`: it sends the mixer on to the separate kernels, which are wrapped themselves.
    """
    names = ("zxbcdt", "conv1d_weight", "conv1d_bias", "dt_bias", "A", "D", "chunk_size")
    call = _bind("split_conv1d_ssd", names, args, kwargs, {})
    _refuse_state(call, "initial_states", "return_final_states")
    options = {name: call[name] for name in _SPLIT_OPTIONS if name in call}
    arguments = {**_required(call, names[:-1]), **options}
    return backends.accelerated("split_conv1d_ssd", arguments, segments, _chunk_size(call))


def selective_scan(segments: Segments, *args: Any, **kwargs: Any) -> torch.Tensor | tuple[torch.Tensor, None]:
    """`selective_scan_fn(u | hidden_states [B, D, T], delta | dt, A, B, C, D=…, z=…, delta_bias=…, …)`."""
    names = ("u", "delta", "A", "B", "C", "D", "z", "delta_bias", "delta_softplus")
    call = _bind("selective_scan", names, args, kwargs, {"hidden_states": "u", "dt": "delta"})
    options = {name: call[name] for name in names[5:] if name in call}
    out = backends.run(SELECTIVE_SCAN, {**_required(call, names[:5]), **options}, segments)
    return (out, None) if call.get("return_last_state") else out


def declined(segments: Segments, *args: Any, **kwargs: Any) -> None:
    """A fused kernel: `None` sends the mixer on to the separate ones, which are wrapped themselves."""


@dataclass(frozen=True)
class Kernel:
    """A kernel as mixers call it: the ops it runs, and the adapter that runs them with boundaries."""

    ops: tuple[str, ...]
    adapter: Callable[..., Any]


_CONV = Kernel((CONV,), causal_conv1d)
_GATED_DELTA = Kernel((GATED_DELTA,), gated_delta_rule)
_KDA = Kernel((KDA,), kimi_delta_attention)
_SSD = Kernel((SSD,), ssd)
_SCAN = Kernel((SELECTIVE_SCAN,), selective_scan)
_SPLIT = Kernel((CONV, SSD), split_conv1d_ssd)
_FUSED = Kernel((), declined)

#: Every name under which a mixer of some transformers generation calls a kernel.
KERNELS: dict[str, Kernel] = {
    "causal_conv1d_fn": _CONV,
    "chunk_gated_delta_rule": _GATED_DELTA,
    "torch_chunk_gated_delta_rule": _GATED_DELTA,
    "chunk_kimi_delta_attention": _KDA,
    "mamba2_chunk_scan": _SSD,
    "mamba_chunk_scan_combined": _SSD,
    "mamba2_split_conv1d_scan_combined": _SPLIT,
    "mamba_selective_scan": _SCAN,
    "selective_scan_fn": _SCAN,
    "mamba_inner_fn": _FUSED,
}

_DELTA_ARGUMENTS = ("q", "k", "v", "g", "beta")
_DELTA_ALIASES = {"query": "q", "key": "k", "value": "v"}
_SPLIT_OPTIONS = (
    *("dt_limit", "activation", "rmsnorm_weight", "rmsnorm_eps", "outproj_weight", "outproj_bias", "headdim"),
    *("ngroups", "norm_before_gate"),
)


def _delta_arguments(call: dict[str, Any]) -> dict[str, Any]:
    options = {"scale": call.get("scale"), "qk_l2norm": bool(call.get("use_qk_l2norm_in_kernel", False))}
    return {**_required(call, _DELTA_ARGUMENTS), **options}


def _required(call: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: call[name] for name in names}


def _chunk_size(call: dict[str, Any]) -> dict[str, Any]:
    return {"chunk_size": call["chunk_size"]} if call.get("chunk_size") else {}


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
