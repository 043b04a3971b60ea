"""The fused form against the parts it is made of, and both ops against the torch code of transformers."""

import importlib

import pytest
import torch
import torch.nn.functional as F

from replacements.kernels.segments import Segments
from replacements.kernels.selective_scan import selective_scan
from replacements.kernels.ssd import ssd
from replacements.kernels.ssd.fused import gated_rms_norm, split_conv1d_ssd
from tests.support.kernels import assert_same, gradients
from tests.support.models import tiny_model

HEADS, WIDTH, GROUPS, STATE, TAPS, MLP, OUT = 4, 3, 2, 5, 4, 7, 6
INNER = HEADS * WIDTH
CONVOLVED = INNER + 2 * GROUPS * STATE


def draw(tokens, mlp=0):
    torch.manual_seed(0)
    shapes = {
        "zxbcdt": (1, tokens, 2 * mlp + INNER + CONVOLVED + HEADS),
        "conv1d_weight": (CONVOLVED, TAPS),
        "conv1d_bias": (CONVOLVED,),
        "dt_bias": (HEADS,),
        "A": (HEADS,),
        "D": (HEADS,),
        "rmsnorm_weight": (INNER,),
        "outproj_weight": (OUT, mlp + INNER),
        "outproj_bias": (OUT,),
    }
    inputs = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    inputs["A"] = -inputs["A"].abs()
    return inputs


@pytest.mark.parametrize("norm_before_gate", [True, False])
@pytest.mark.parametrize("mlp", [0, MLP])
def test_documents_packed_equal_documents_alone(mlp, norm_before_gate):
    lengths = [5, 1, 40, 18]
    inputs = {name: x.requires_grad_() for name, x in draw(sum(lengths), mlp).items()}
    options = {"headdim": WIDTH, "ngroups": GROUPS, "norm_before_gate": norm_before_gate}
    packed = split_conv1d_ssd(**inputs, segments=Segments(lengths), **options)
    row = inputs["zxbcdt"]
    rest = {name: x for name, x in inputs.items() if name != "zxbcdt"}
    alone = [
        split_conv1d_ssd(part, segments=Segments([part.shape[1]]), **rest, **options) for part in row.split(lengths, 1)
    ]
    alone = torch.cat(alone, 1)
    assert packed.shape == (1, sum(lengths), OUT)
    assert_same(packed, alone, 1e-9)
    leaves = list(inputs.values())
    for name, a, b in zip(inputs, gradients(packed, leaves), gradients(alone, leaves), strict=True):
        assert_same(a, b, 1e-9, name)


def test_without_a_norm_the_gate_is_the_scans():
    inputs = draw(20)
    inputs["rmsnorm_weight"] = inputs["outproj_weight"] = inputs["outproj_bias"] = None
    segments = Segments([20])
    gated = split_conv1d_ssd(**inputs, segments=segments, headdim=WIDTH, ngroups=GROUPS)
    inputs["rmsnorm_weight"] = torch.ones(INNER, dtype=torch.float64)
    normed = split_conv1d_ssd(
        **inputs, segments=segments, headdim=WIDTH, ngroups=GROUPS, norm_before_gate=False, rmsnorm_eps=0
    )
    by_group = gated.unflatten(-1, (GROUPS, -1))
    torch.testing.assert_close(normed, F.normalize(by_group, dim=-1).flatten(-2) * (INNER / GROUPS) ** 0.5)


def test_norm_and_gate_do_not_commute():
    y, z, weight = torch.randn(3, 1, 4, 8)
    weight = weight[0, 0]
    before = gated_rms_norm(y, z, weight, 1e-6, 1, norm_before_gate=True)
    torch.testing.assert_close(before, F.rms_norm(y, (8,), weight, 1e-6) * F.silu(z))
    after = gated_rms_norm(y, z, weight, 1e-6, 1, norm_before_gate=False)
    torch.testing.assert_close(after, F.rms_norm(y * F.silu(z), (8,), weight, 1e-6))


@pytest.mark.parametrize(
    ("change", "message"), [({"headdim": None}, "headdim must be given"), ({"ngroups": 3}, "does not fit")]
)
def test_sizes_must_add_up(change, message):
    options = {"headdim": WIDTH, "ngroups": GROUPS, **change}
    with pytest.raises(ValueError, match=message):
        split_conv1d_ssd(**draw(20), segments=Segments([20]), **options)


def upstream(family, name):
    """The torch code that transformers falls back to."""
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    if not hasattr(module, name):
        pytest.skip(f"this transformers has no {name}")
    return getattr(module, name)


def test_same_meaning_as_the_ssd_of_transformers():
    torch.manual_seed(0)
    x, z = torch.randn(2, 2, 100, HEADS, WIDTH)
    B, C = torch.randn(2, 2, 100, GROUPS, STATE)
    dt, dt_bias, A, D = torch.randn(2, 100, HEADS), torch.randn(HEADS), -torch.rand(HEADS) * 4, torch.randn(HEADS)
    options = {"D": D, "dt_bias": dt_bias, "dt_softplus": True, "dt_limit": (0.05, 1.0)}
    theirs = upstream("mamba2", "mamba2_chunk_scan")(x, dt, A, B, C, 16, **options)
    assert_same(ssd(x, dt, A, B, C, Segments([100, 100], rows=2), **options), theirs, 1e-5)
    gated = ssd(x, dt, A, B, C, Segments([100, 100], rows=2), z=z, **options)
    assert_same(gated, theirs * F.silu(z), 1e-5)


def test_same_meaning_as_the_selective_scan_of_transformers():
    torch.manual_seed(0)
    u, delta, z = torch.randn(3, 2, 6, 50)
    B, C = torch.randn(2, 2, STATE, 50)
    A, D, delta_bias = -torch.rand(6, STATE), torch.randn(6), torch.randn(6)
    options = {"D": D, "z": z, "delta_bias": delta_bias, "delta_softplus": True}
    theirs = upstream("mamba", "mamba_selective_scan")(u, delta, A, B, C, **options)
    assert_same(selective_scan(u, delta, A, B, C, Segments([50, 50], rows=2), **options), theirs, 1e-5)


@pytest.mark.parametrize("family", ["mamba2", "bamba", "zamba2", "nemotron_h", "granitemoehybrid"])
def test_same_meaning_as_the_mixers_of_transformers(family):
    upstream(family, "mamba2_split_conv1d_scan_combined")
    model = tiny_model(family).eval()
    mixer = next(m for m in model.modules() if hasattr(m, "A_log") and hasattr(m, "conv1d"))
    torch.manual_seed(0)
    hidden = torch.randn(1, 40, mixer.in_proj.in_features)
    with torch.no_grad():
        theirs = mixer(hidden)
        ours = split_conv1d_ssd(
            mixer.in_proj(hidden),
            mixer.conv1d.weight.squeeze(1),
            mixer.conv1d.bias,
            mixer.dt_bias,
            -torch.exp(mixer.A_log.float()),
            mixer.D,
            Segments([40]),
            dt_limit=mixer.time_step_limit,
            activation=mixer.activation,
            rmsnorm_weight=mixer.norm.weight,
            rmsnorm_eps=mixer.norm.variance_epsilon,
            outproj_weight=mixer.out_proj.weight,
            outproj_bias=mixer.out_proj.bias,
            headdim=mixer.head_dim,
            ngroups=mixer.n_groups,
            norm_before_gate=False,
        )
    assert_same(ours, theirs, 1e-5)
