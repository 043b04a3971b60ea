"""Packages with the signatures of the accelerated kernels, computed by the torch operations.

Each checks what the real kernel demands of its tensors, so that a test fails where a card would.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

import torch

from replacements.kernels.causal_conv1d import causal_conv1d as conv_op
from replacements.kernels.gated_delta_rule import gated_delta_rule as gated_delta_op
from replacements.kernels.kimi_delta_attention import kimi_delta_attention as kda_op
from replacements.kernels.segments import Segments
from replacements.kernels.selective_scan import selective_scan as scan_op
from replacements.kernels.ssd import ssd as ssd_op
from replacements.kernels.ssd.fused import split_conv1d_ssd as split_op

calls: list[str] = []


def _from_seq_idx(seq_idx: torch.Tensor | None, rows: int, tokens: int) -> Segments:
    if seq_idx is None:
        return Segments([tokens] * rows, rows)
    assert seq_idx.dtype == torch.int32
    assert seq_idx.is_contiguous()
    assert seq_idx.shape == (rows, tokens)
    lengths = [int(n) for row in seq_idx for n in torch.unique_consecutive(row, return_counts=True)[1]]
    return Segments(lengths, rows)


def _from_cu_seqlens(cu_seqlens: torch.Tensor | None, rows: int, tokens: int) -> Segments:
    if cu_seqlens is None:
        return Segments([tokens] * rows, rows)
    assert cu_seqlens.dtype in (torch.int32, torch.int64)
    assert cu_seqlens.is_contiguous()
    assert rows == 1, "flatten the batch for cu_seqlens"
    assert int(cu_seqlens[0]) == 0
    assert int(cu_seqlens[-1]) == tokens
    return Segments(cu_seqlens.diff().tolist())


def causal_conv1d_fn(
    x,
    weight,
    bias=None,
    seq_idx=None,
    initial_states=None,
    return_final_states=False,
    final_states_out=None,
    activation=None,
):
    calls.append("causal_conv1d_fn")
    assert seq_idx is None or x.stride(1) == 1, "seq_idx needs channels adjacent in memory"
    assert x.shape[1] % 8 == 0
    assert x.stride(0) % 8 == 0
    assert x.stride(2) % 8 == 0
    assert 2 <= weight.shape[1] <= 4
    return conv_op(x, weight, bias, _from_seq_idx(seq_idx, x.shape[0], x.shape[2]), activation)


def fla_causal_conv1d(
    x,
    weight=None,
    bias=None,
    residual=None,
    initial_state=None,
    output_final_state=False,
    activation=None,
    backend="triton",
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    cp_context=None,
    **kwargs,
):
    calls.append("fla_causal_conv1d")
    segments = _from_cu_seqlens(cu_seqlens, x.shape[0], x.shape[1])
    return conv_op(x.transpose(1, 2), weight, bias, segments, activation).transpose(1, 2).contiguous(), None


def chunk_gated_delta_rule(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    cu_seqlens=None,
    cu_seqlens_cpu=None,
    chunk_indices=None,
    **kwargs,
):
    calls.append("chunk_gated_delta_rule")
    segments = _from_cu_seqlens(cu_seqlens, *q.shape[:2])
    return gated_delta_op(q, k, v, g, beta, segments, scale, use_qk_l2norm_in_kernel), None


def chunk_kda(
    q,
    k,
    v,
    g,
    beta,
    scale=None,
    initial_state=None,
    output_final_state=False,
    use_qk_l2norm_in_kernel=False,
    use_gate_in_kernel=False,
    cu_seqlens=None,
    **kwargs,
):
    calls.append("chunk_kda")
    segments = _from_cu_seqlens(cu_seqlens, *q.shape[:2])
    return kda_op(q, k, v, g, beta, segments, scale, use_qk_l2norm_in_kernel), None


def mamba_chunk_scan_combined(
    x,
    dt,
    A,
    B,
    C,
    chunk_size,
    D=None,
    z=None,
    dt_bias=None,
    initial_states=None,
    seq_idx=None,
    cu_seqlens=None,
    dt_softplus=False,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    return_varlen_states=False,
):
    calls.append("mamba_chunk_scan_combined")
    assert chunk_size > 0
    return ssd_op(x, dt, A, B, C, _from_seq_idx(seq_idx, *x.shape[:2]), D, z, dt_bias, dt_softplus, dt_limit)


def mamba_split_conv1d_scan_combined(
    zxbcdt,
    conv1d_weight,
    conv1d_bias,
    dt_bias,
    A,
    D,
    chunk_size,
    initial_states=None,
    seq_idx=None,
    dt_limit=(0.0, float("inf")),
    return_final_states=False,
    activation="silu",
    rmsnorm_weight=None,
    rmsnorm_eps=1e-6,
    outproj_weight=None,
    outproj_bias=None,
    headdim=None,
    ngroups=1,
    norm_before_gate=True,
):
    calls.append("mamba_split_conv1d_scan_combined")
    options = {
        name: value
        for name, value in locals().items()
        if name not in ("chunk_size", "initial_states", "seq_idx", "return_final_states")
    }
    return split_op(**options, segments=_from_seq_idx(seq_idx, *zxbcdt.shape[:2]))


def selective_scan_fn(
    u,
    delta,
    A,
    B,
    C,
    D=None,
    z=None,
    delta_bias=None,
    delta_softplus=False,
    return_last_state=False,
    cu_seqlens=None,
):
    calls.append("selective_scan_fn")
    segments = _from_cu_seqlens(cu_seqlens, u.shape[0], u.shape[2])
    return scan_op(u, delta, A, B, C, segments, D, z, delta_bias, delta_softplus)


#: Where each lives, and under which name.
PLACES: dict[str, tuple[str, Callable]] = {
    "causal_conv1d: causal_conv1d_fn": ("causal_conv1d:causal_conv1d_fn", causal_conv1d_fn),
    "fla: causal_conv1d": ("fla.modules.convolution:causal_conv1d", fla_causal_conv1d),
    "fla: chunk_gated_delta_rule": ("fla.ops.gated_delta_rule:chunk_gated_delta_rule", chunk_gated_delta_rule),
    "fla: chunk_kda": ("fla.ops.kda:chunk_kda", chunk_kda),
    "mamba_ssm: mamba_chunk_scan_combined": (
        "mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined",
        mamba_chunk_scan_combined,
    ),
    "mamba_ssm: mamba_split_conv1d_scan_combined": (
        "mamba_ssm.ops.triton.ssd_combined:mamba_split_conv1d_scan_combined",
        mamba_split_conv1d_scan_combined,
    ),
    "mamba_ssm: selective_scan_fn": ("mamba_ssm.ops.selective_scan_interface:selective_scan_fn", selective_scan_fn),
}


def provide(monkeypatch, name: str, kernel: Callable | None = None) -> None:
    """Makes one kernel importable, by default the faithful one."""
    place, faithful = PLACES[name]
    module, _, attribute = place.partition(":")
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        if path not in sys.modules:
            made = types.ModuleType(path)
            made.__path__ = []
            made.__spec__ = types.SimpleNamespace(name=path, loader=None, submodule_search_locations=[])
            monkeypatch.setitem(sys.modules, path, made)
    monkeypatch.setattr(sys.modules[module], attribute, kernel or faithful, raising=False)
