import pytest
import torch

from replacements.kernels import linear_recurrence
from replacements.kernels.linear_recurrence import reverse_scan_, scan_


@pytest.fixture(params=["rows", "tree"])
def form(request, monkeypatch):
    monkeypatch.setattr(linear_recurrence, "_SERIAL_ROW_CPU", {"rows": 1, "tree": 1 << 30}[request.param])
    return request.param


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 31, 64, 100])
def test_both_forms_solve_the_recurrence_both_ways(form, length):
    decay = torch.rand(length - 1, 1, 3, dtype=torch.float64)
    decay[decay < 0.2] = 0
    start = torch.randn(length, 2, 3, dtype=torch.float64)
    forward, backward = start.clone(), start.clone()
    scan_(decay, forward)
    reverse_scan_(decay, backward)
    wanted, mirrored = start.clone(), start.clone()
    for t in range(1, length):
        wanted[t] += decay[t - 1] * wanted[t - 1]
        mirrored[-t - 1] += decay[-t] * mirrored[-t]
    torch.testing.assert_close(forward, wanted)
    torch.testing.assert_close(backward, mirrored)


def test_a_zero_decay_lets_nothing_through(form):
    decay = torch.rand(20, 4)
    decay[9] = 0
    one, other = torch.randn(2, 21, 4)
    other[10:] = one[10:]
    scan_(decay, one)
    scan_(decay, other)
    assert torch.equal(one[10:], other[10:])
    assert not torch.equal(one[:10], other[:10])
