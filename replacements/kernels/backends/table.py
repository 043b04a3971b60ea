"""Which kernels compute which operation, in order of preference."""

from __future__ import annotations

from ..causal_conv1d import causal_conv1d as conv_op
from ..gated_delta_rule import gated_delta_rule as gated_delta_op
from ..kimi_delta_attention import kimi_delta_attention as kda_op
from ..selective_scan import selective_scan as scan_op
from ..ssd import ssd as ssd_op
from ..ssd.fused import split_conv1d_ssd as split_op
from . import causal_conv1d, fla, mamba_ssm
from .backend import Backend

#: The torch operations. Backends take their arguments, under their names, except for the segments.
OPS = {
    "causal_conv1d": conv_op,
    "gated_delta_rule": gated_delta_op,
    "kimi_delta_attention": kda_op,
    "ssd": ssd_op,
    "split_conv1d_ssd": split_op,
    "selective_scan": scan_op,
}

#: Device types on which no backend is tried: the kernels have no CPU form, or only an interpreter.
NEVER_ON = frozenset({"cpu"})

BACKENDS: tuple[Backend, ...] = (
    Backend(
        name="causal_conv1d: causal_conv1d_fn",
        op="causal_conv1d",
        places=("causal_conv1d:causal_conv1d_fn",),
        boundary="seq_idx",
        call=causal_conv1d.causal_conv1d_fn,
    ),
    Backend(
        name="fla: causal_conv1d",
        op="causal_conv1d",
        places=(
            "fla.modules.causal_conv1d:causal_conv1d",
            "fla.modules.conv:causal_conv1d",
            "fla.modules.convolution:causal_conv1d",
        ),
        boundary="cu_seqlens",
        call=fla.causal_conv1d,
    ),
    Backend(
        name="fla: chunk_gated_delta_rule",
        op="gated_delta_rule",
        places=("fla.ops.gated_delta_rule:chunk_gated_delta_rule",),
        boundary="cu_seqlens",
        call=fla.delta_rule,
    ),
    Backend(
        name="fla: chunk_kda",
        op="kimi_delta_attention",
        places=("fla.ops.kda:chunk_kda",),
        boundary="cu_seqlens",
        call=fla.delta_rule,
    ),
    Backend(
        name="mamba_ssm: mamba_chunk_scan_combined",
        op="ssd",
        places=("mamba_ssm.ops.triton.ssd_combined:mamba_chunk_scan_combined",),
        boundary="seq_idx",
        call=mamba_ssm.chunk_scan,
    ),
    Backend(
        name="mamba_ssm: mamba_split_conv1d_scan_combined",
        op="split_conv1d_ssd",
        places=("mamba_ssm.ops.triton.ssd_combined:mamba_split_conv1d_scan_combined",),
        boundary="seq_idx",
        call=mamba_ssm.split_conv1d_scan,
    ),
    Backend(
        name="mamba_ssm: selective_scan_fn",
        op="selective_scan",
        places=("mamba_ssm.ops.selective_scan_interface:selective_scan_fn",),
        boundary="cu_seqlens",
        call=mamba_ssm.selective_scan,
    ),
)
