"""Gradients by what makes the decays (A_log, dt_bias, the projection) keep their digits however fast the decays are.

The yardstick is what float32 itself costs: the recurrence, one token at a time, in float32.
"""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from replacements.kernels.crossing import across_pairs, from_start, to_end
from replacements.kernels.gated_delta_rule import gated_delta_rule
from replacements.kernels.gated_delta_rule.naive import gated_delta_rule as naive_delta_rule
from replacements.kernels.kimi_delta_attention import kimi_delta_attention
from replacements.kernels.segments import Segments
from replacements.kernels.selective_scan import selective_scan
from replacements.kernels.selective_scan.naive import naive_selective_scan
from replacements.kernels.ssd import ssd
from replacements.kernels.ssd.naive import naive_ssd

HEADS, WIDTH, STATE = 8, 16, 8
SEGMENTS = Segments([1, 7, 90, 3, 20, 1, 29])


def delta_rule(op, x):
    decay, bias = (x[n].reshape(HEADS, *[1] * (x["a"].ndim - 3)) for n in ("A_log", "dt_bias"))
    g = -decay.exp() * F.softplus(x["a"] + bias)
    return op(x["q"], x["k"], x["v"], g, x["beta"].sigmoid(), SEGMENTS, qk_l2norm=True)


def mamba2(op, x):
    return op(x["x"], x["dt"], -x["A_log"].exp(), x["B"], x["C"], SEGMENTS, dt_bias=x["dt_bias"], dt_softplus=True)


def mamba(op, x):
    A = -x["A_log"].exp()
    return op(x["u"], x["dt"], A, x["B"], x["C"], SEGMENTS, delta_bias=x["dt_bias"], delta_softplus=True)


TOKENS = SEGMENTS.total
ROW = (1, TOKENS, HEADS)
QKV = dict.fromkeys("qkv", (*ROW, WIDTH)) | {"beta": ROW}
HEAD = {"A_log": (HEADS,), "dt_bias": (HEADS,)}
OPS = {
    "gated delta rule": SimpleNamespace(
        op=gated_delta_rule, naive=naive_delta_rule, call=delta_rule, rates="a", shapes=QKV | {"a": ROW} | HEAD
    ),
    "Kimi delta attention": SimpleNamespace(
        op=kimi_delta_attention,
        naive=naive_delta_rule,
        call=delta_rule,
        rates="a",
        shapes=QKV | {"a": (*ROW, WIDTH)} | HEAD,
    ),
    "SSD": SimpleNamespace(
        op=ssd,
        naive=naive_ssd,
        call=mamba2,
        rates="dt",
        shapes={"x": (*ROW, WIDTH), "dt": ROW} | dict.fromkeys("BC", (1, TOKENS, 1, STATE)) | HEAD,
    ),
    "selective scan": SimpleNamespace(
        op=selective_scan,
        naive=naive_selective_scan,
        call=mamba,
        rates="dt",
        shapes=dict.fromkeys(("u", "dt"), (1, WIDTH, TOKENS))
        | dict.fromkeys("BC", (1, STATE, TOKENS))
        | {"A_log": (WIDTH, STATE), "dt_bias": (WIDTH,)},
    ),
}


def arguments(case, decay, spread):
    """Normal numbers that float32 holds; a token decays by about ``exp(-decay)``, the more unevenly the more spread."""
    generator = torch.Generator().manual_seed(0)
    x = {name: torch.randn(shape, generator=generator) for name, shape in case.shapes.items()}
    x["A_log"] = torch.tensor(decay).log() + 0.1 * x["A_log"]
    x["dt_bias"] = 0.5 + 0.1 * x["dt_bias"]
    x[case.rates] = spread * x[case.rates]
    return x


def gradients(case, op, x, dtype):
    given = {name: t.to(dtype).requires_grad_() for name, t in x.items()}
    out = case.call(op, given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return dict(zip(given, torch.autograd.grad(out, list(given.values()), weight), strict=True))


@pytest.mark.parametrize("spread", [0.3, 3.0], ids=["even", "uneven"])
@pytest.mark.parametrize("decay", [1e-3, 1.0, 5.0, 20.0])
@pytest.mark.parametrize("case", OPS.values(), ids=OPS)
def test_as_exact_as_one_token_at_a_time(case, decay, spread):
    x = arguments(case, decay, spread)
    exact, naive = (gradients(case, case.naive, x, dtype) for dtype in (torch.float64, torch.float32))
    for name, grad in gradients(case, case.op, x, torch.float32).items():
        ours, unavoidable = ((g.double() - exact[name]).norm() / exact[name].norm() for g in (grad, naive[name]))
        assert ours <= 3 * max(unavoidable, 2e-7), f"{name}: {ours:.1e} where float32 itself costs {unavoidable:.1e}"


def test_what_a_decay_collects():
    pairs = torch.arange(16.0).view(4, 4)
    wanted = [sum(pairs[i, j] for i in range(t, 4) for j in range(t)) for t in range(4)]
    assert across_pairs(pairs.clone()).tolist() == wanted
    slots = torch.tensor([1.0, 20.0, 300.0])
    assert from_start(slots).tolist() == [321, 320, 300]
    assert to_end(slots).tolist() == [0, 1, 21]
