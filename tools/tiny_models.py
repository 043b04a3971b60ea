"""Tiny models of every family in tests/families.json, drawn so that a leak shows, and what is compared of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from replacements.packing.texts import one_line
from replacements.packing.weights import redraw

FAMILIES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "tests" / "families.json").read_text("utf-8")
)


def exists(family: str) -> bool:
    """Whether the installed transformers has the family."""
    return hasattr(transformers, FAMILIES[family]["model_class"])


def tiny_model(
    family: str,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    *,
    adapt: Callable[[Any], Any] = lambda config: config,
    runs: bool = False,
    **changes: Any,
) -> nn.Module:
    """A model in eval mode, from the first variant of its config that this transformers builds.

    Args:
        family: Name in tests/families.json.
        seed: Of the weights.
        dtype: Of the weights.
        adapt: Called on the config before the model is built.
        runs: Whether a variant has to run a row, too.
        changes: Fields of the config that are to be otherwise.

    Raises:
        RuntimeError: No variant does; the text has each one's error.
    """
    row, errors = FAMILIES[family], []
    for variant in row["variants_to_try"]:
        try:
            config = getattr(transformers, row["config_class"])(**{**row["config"], **variant, **changes})
            model = redraw(getattr(transformers, row["model_class"])(adapt(config)), seed).to(dtype)
            if runs:
                with torch.no_grad():
                    model(input_ids=torch.arange(3, 8)[None], use_cache=False)
            return model
        except Exception as error:  # another release's spelling of a config fails anywhere
            errors.append(f"{variant or 'as it stands'}: {one_line(error, 160)}")
    raise RuntimeError(f"no variant of {family} builds here: {'; '.join(errors)}")


def summed_loss(log_probabilities: torch.Tensor, documents: list[torch.Tensor]) -> torch.Tensor:
    """Sum over documents of the next-token loss inside each, so that packed and apart are the same number."""
    total, start = log_probabilities.new_zeros(()), 0
    for document in documents:
        rows = log_probabilities[start : start + len(document) - 1]
        total = total - rows.gather(1, document[1:, None]).sum()
        start += len(document)
    return total


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's gradients, taken off it."""
    taken = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return taken


def relative_error(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of two sets of gradients, relative to the largest expected value of each parameter."""
    assert got.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    return max(float((got[n] - g).abs().max()) / max(float(g.abs().max()), 1e-3 * scale) for n, g in expected.items())
