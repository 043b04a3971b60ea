import pytest
import torch

from replacements.kernels.delta_rule.triangular import _by_doubling, unit_lower_inverse
from replacements.kernels.gated_delta_rule import gated_delta_rule
from replacements.kernels.gated_delta_rule.naive import gated_delta_rule as naive
from replacements.kernels.kimi_delta_attention import kimi_delta_attention
from replacements.kernels.precision import Precision
from replacements.kernels.segments import Segments
from tests.support.kernels import assert_agrees, assert_same

HALF_PRODUCTS = Precision(torch.float32, torch.bfloat16, torch.float64)


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
    ],
)
def test_dtypes_on_the_cpu(dtype, state):
    assert Precision.of(torch.zeros(1, dtype=dtype)) == Precision(state, state, torch.float64)


def test_integers_are_refused():
    with pytest.raises(TypeError, match="floating"):
        Precision.of(torch.zeros(1, dtype=torch.int64))


def test_half_products_accumulate_in_the_state_dtype():
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 5, 6)
    wanted = a.bfloat16().double() @ b.bfloat16().double()
    out = HALF_PRODUCTS.matmul(a, b)
    assert out.dtype == torch.float32
    assert_same(out, wanted, 2**-7)
    start = torch.randn(2, 3, 4, 6)
    assert_same(HALF_PRODUCTS.add_matmul(start.clone(), a, b, alpha=-1), start - wanted, 2**-7)


@pytest.mark.parametrize(("op", "channels"), [(gated_delta_rule, False), (kimi_delta_attention, True)])
def test_delta_rules_with_half_products(op, channels, monkeypatch):
    """What bfloat16 input takes on an accelerator, on the CPU."""
    monkeypatch.setattr(Precision, "of", lambda _: HALF_PRODUCTS)
    segments = Segments([40, 1, 90, 7, 7])
    shape, generator = (1, segments.total, 2), torch.Generator().manual_seed(0)

    def draw(*size):
        return torch.rand(*shape, *size, generator=generator)

    inputs = {"q": draw(4) - 0.5, "k": draw(4) - 0.5, "v": draw(6) - 0.5, "beta": draw()}
    inputs["g"] = -0.2 * draw(*([4] if channels else []))
    inputs = {n: x if n == "g" else x.bfloat16() for n, x in inputs.items()}
    assert_agrees(op, naive, inputs, 2**-6, segments=segments, qk_l2norm=True)


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64, 128])
@pytest.mark.parametrize("invert", [unit_lower_inverse, _by_doubling])
def test_triangular_inverse(size, invert):
    a = 0.3 * torch.randn(3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    wanted = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + a.tril(-1))
    assert_same(invert(a), wanted, 1e-12)


def test_doubling_keeps_single_precision_for_equal_keys():
    """Without decay and with equal keys the entries are all ones: the worst case for powers of the matrix."""
    a = torch.ones(1, 64, 64).tril(-1)
    wanted = torch.linalg.inv(torch.eye(64, dtype=torch.float64) + a.double())
    assert_same(_by_doubling(a), wanted, 1e-6)
