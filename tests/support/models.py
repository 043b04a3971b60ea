"""Tiny models of every family, drawn so that a leak between documents shows."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import transformers

FAMILIES = json.loads((Path(__file__).parent.parent / "families.json").read_text())


def families() -> list[str]:
    """Names of the families that the installed transformers has."""
    return [name for name, row in FAMILIES.items() if hasattr(transformers, row["model_class"])]


def tiny_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes) -> torch.nn.Module:
    """A model of one family from its tiny config, with weights under which its state lives long."""
    row = FAMILIES[name]
    model = None
    for variant in row["variants_to_try"]:
        try:
            config = getattr(transformers, row["config_class"])(**{**row["config"], **variant, **changes})
            model = getattr(transformers, row["model_class"])(config)
            break
        except (TypeError, ValueError, KeyError) as error:
            failure = error
    if model is None:
        raise failure
    return redraw(model, seed).to(dtype)


def redraw(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Draws weights at 1/sqrt(fan_in) and slows decay: with default weights a leak drowns in rounding."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if leaf in ("A_log", "A"):
                parameter.fill_(-3.0)
            elif leaf == "dt_bias":
                parameter.fill_(-1.0)
            elif parameter.ndim >= 2:
                fan_in = parameter[0].numel()
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / fan_in**0.5)
            elif "bias" in leaf:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def token_documents(lengths: list[int], vocab: int = 128, seed: int = 0) -> list[torch.Tensor]:
    """Random documents, int64 `[length]` each; id 0 is left for padding."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, vocab, (length,), generator=generator) for length in lengths]


def packed_row(documents: list[torch.Tensor], *, seq_idx: bool = True) -> dict[str, torch.Tensor]:
    """The documents in one row, as TRL's collator emits it: `[1, T]` ids, positions, labels and `seq_idx`."""
    labels = [document.clone() for document in documents]
    for label in labels:
        label[0] = -100
    row = {
        "input_ids": torch.cat(documents)[None],
        "position_ids": torch.cat([torch.arange(len(d)) for d in documents])[None],
        "labels": torch.cat(labels)[None],
    }
    if seq_idx:
        numbers = [torch.full((len(d),), i, dtype=torch.int32) for i, d in enumerate(documents)]
        row["seq_idx"] = torch.cat(numbers)[None]
    return row


def log_probs(model: torch.nn.Module, **inputs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of every token of the vocabulary, `[T, V]`, of a batch of one row."""
    inputs.pop("labels", None)
    logits = model(**inputs).logits[0]
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def log_probs_apart(model: torch.nn.Module, documents: list[torch.Tensor]) -> torch.Tensor:
    """The same for documents run alone, one after the other, then joined."""
    return torch.cat([log_probs(model, input_ids=document[None]) for document in documents])


def summed_loss(log_probabilities: torch.Tensor, documents: list[torch.Tensor]) -> torch.Tensor:
    """Sum over documents of the next-token loss inside each, so that packed and apart are the same number."""
    total, start = log_probabilities.new_zeros(()), 0
    for document in documents:
        rows = log_probabilities[start : start + len(document) - 1]
        total = total - rows.gather(1, document[1:, None]).sum()
        start += len(document)
    return total


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model's gradients, taken off it."""
    taken = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return taken


def relative_error(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Largest difference of two sets of gradients, relative to the largest expected value of each parameter."""
    assert got.keys() == expected.keys()
    scale = max(float(g.abs().max()) for g in expected.values())
    return max(float((got[n] - g).abs().max()) / max(float(g.abs().max()), 1e-3 * scale) for n, g in expected.items())
