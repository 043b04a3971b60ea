"""What the tests of the boundary-aware operations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from replacements.kernels.segments import Segments

#: Rows every operation has to get right: single tokens, one document, lengths around the usual chunk sizes.
ROWS: dict[str, list[int]] = {
    "one token": [1],
    "three of one token": [1, 1, 1],
    "one document": [200],
    "around 16": [15, 16, 17, 31, 32, 33, 1, 7],
    "around 64": [63, 64, 65, 1, 127, 128, 129],
    "short after long": [150, 1, 2, 3, 1, 70, 5],
    "many tiny": [1 + i % 3 for i in range(1000)],
}


#: Rows in which anything that is quadratic, or runs in Python per document, shows.
LONG_ROWS: dict[str, np.ndarray] = {
    "10000 of one token": np.ones(10_000, np.int64),
    "one of 65536": np.array([65_536]),
    "mixed": np.array([1] * 3000 + [5000, 2, 300]),
}


def ends(segments: Segments) -> list[tuple[slice, Segments]]:
    """Tokens at both ends of a long row that hang on nothing else, and the documents they are of."""
    if segments.count == 1:
        return [(slice(300), Segments([300]))]
    first, last = segments.lengths[:300], segments.lengths[-2:]
    return [(slice(int(first.sum())), Segments(first)), (slice(-int(last.sum()), None), Segments(last))]


def random_lengths(count: int, longest: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, longest + 1, count).tolist()


def gradients(output: torch.Tensor, inputs: Sequence[torch.Tensor], seed: int = 7) -> tuple[torch.Tensor, ...]:
    """Gradients of one random combination of the output, the same for outputs of one shape."""
    weight = torch.randn(output.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.autograd.grad(output, inputs, weight.to(output.dtype), allow_unused=True)


def assert_same(ours: torch.Tensor, reference: torch.Tensor, tolerance: float, name: str = "output") -> None:
    """Largest difference, relative to the larger of one and the reference's largest value."""
    assert ours.shape == reference.shape, name
    assert torch.isfinite(ours).all(), f"{name} is not finite"
    error = (ours.double() - reference.double()).abs().max().item()
    assert error <= tolerance * max(1.0, reference.double().abs().max().item()), f"{name}: off by {error:.2e}"


def assert_agrees(op: Callable, naive: Callable, inputs: dict[str, torch.Tensor], tolerance: float, **options) -> None:
    """Output and every gradient of ``op`` against ``naive``, which runs in float64."""
    ours = {n: x.detach().clone().requires_grad_() for n, x in inputs.items()}
    theirs = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    out, reference = op(**ours, **options), naive(**theirs, **options)
    assert_same(out, reference, tolerance)
    got = gradients(out, list(ours.values()))
    wanted = gradients(reference, list(theirs.values()))
    for name, a, b in zip(inputs, got, wanted, strict=True):
        assert a.dtype == inputs[name].dtype
        assert_same(a, b, tolerance, f"gradient of {name}")
