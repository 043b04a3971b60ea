"""Whether the families of the installed transformers keep packed documents apart, stock and patched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn

from replacements.packing.guard import Situation, judge
from replacements.packing.runtime import attach, detach_all
from replacements.packing.verdict import Verdict
from tests.support.models import (
    gradients,
    packed_row,
    redraw,
    relative_error,
    summed_loss,
    token_documents,
)

FAMILIES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "tests" / "families.json").read_text("utf-8")
)
#: Single tokens, a document over the edge of a chunk of 64, one that fills a chunk.
LENGTHS = (23, 1, 1, 70, 64, 5)
#: Largest difference of a log-probability, and of a gradient relative to the parameter's largest, that is rounding.
LOG_PROBS, GRADIENTS = 1e-4, 1e-4
#: A document whose log-probabilities move by more when another is changed was reached by it.
MOVED = 1e-5

MODES = ("eval", "train")
FORMS = ("position_ids", "seq_idx")


@dataclass(frozen=True)
class Row:
    """One cell of the census.

    Attributes:
        family: Name in tests/families.json.
        transformers: Version.
        patched: Whether the guard was asked and the runtime attached.
        mode: ``eval`` or ``train``; gradients are compared in the latter.
        form: What the batch says of documents: ``position_ids`` alone, or also ``seq_idx`` and ``cu_seq_lens``.
        result: ``isolated``; ``leaks``; ``differs``, from the documents alone, though no document moves another;
            ``padded``; ``raises``; ``absent``, not in this transformers; or ``not built``.
        log_probs: Largest difference to the documents alone, in nats.
        gradients: Largest difference of a gradient, relative to the parameter's largest.
        detail: The guard's reason, the error, or what is to know of a difference.
    """

    family: str
    transformers: str
    patched: bool
    mode: str
    form: str
    result: str
    log_probs: float | None = None
    gradients: float | None = None
    detail: str = ""

    @property
    def silent_leak(self) -> bool:
        """A leak that the patch let pass."""
        return self.patched and self.result == "leaks"


def census(families: list[str]) -> Iterator[list[Row]]:
    """The rows of each family, one family at a time."""
    for family in families:
        yield list(_family(family))


def _family(family: str) -> Iterator[Row]:
    version = transformers.__version__

    def everywhere(result: str, detail: str = "") -> list[Row]:
        return [Row(family, version, *where, result, detail=detail) for where in product((False, True), MODES, FORMS)]

    if not hasattr(transformers, FAMILIES[family]["model_class"]):
        yield from everywhere("absent")
        return
    try:
        model = build(family)
    except RuntimeError as error:
        yield from everywhere("not built", str(error))
        return
    documents = token_documents(list(LENGTHS))
    verdict = _verdict(model)
    for patched, mode in product((False, True), MODES):
        if patched and verdict.action != "pack":
            detail = f"{verdict.reason.code}: {verdict.sentence}"
            for form in FORMS:
                yield Row(family, version, True, mode, form, "padded", detail=detail)
            continue
        model.train(mode == "train")
        try:
            alone = _apart(model, documents)
        except Exception as error:  # a release that cannot even train on one document after another
            model.zero_grad(set_to_none=True)
            for form in FORMS:
                yield Row(family, version, patched, mode, form, "raises", detail=f"unpacked, {_line(error)}")
            continue
        with _attached(model, patched):
            for form in FORMS:
                yield Row(family, version, patched, mode, form, **_compare(model, documents, form, alone))


def build(family: str) -> nn.Module:
    """A tiny model from the first variant of its config that this transformers builds and runs.

    Raises:
        RuntimeError: None does; the text has each one's error.
    """
    row, errors = FAMILIES[family], []
    for variant in row["variants_to_try"]:
        try:
            config = getattr(transformers, row["config_class"])(**{**row["config"], **variant})
            model = redraw(getattr(transformers, row["model_class"])(config)).float()
            with torch.no_grad():
                _log_probs(model, {"input_ids": token_documents([5])[0][None]})
            return model
        except Exception as error:  # another release's spelling of a config fails anywhere
            errors.append(_line(error))
    raise RuntimeError("; ".join(errors))


def _verdict(model: nn.Module) -> Verdict:
    settings = SimpleNamespace(packing=True, padding_free=False, packing_strategy="bfd", eval_packing=None)
    return judge(Situation(model, settings))


@contextmanager
def _attached(model: nn.Module, patched: bool) -> Iterator[None]:
    if patched:
        attach(model)
    try:
        yield
    finally:
        detach_all()


@dataclass(frozen=True)
class _Alone:
    """The documents by themselves, and how far the longest is from itself when other tokens follow it.

    What is causal and right stays where it is. Some releases' torch paths do not.
    """

    log_probs: torch.Tensor
    gradients: dict[str, torch.Tensor] | None
    unsteady: float


def _apart(model: nn.Module, documents: list[torch.Tensor]) -> _Alone:
    """The documents one after the other; their gradients add up."""
    parts = []
    for document in documents:
        with torch.set_grad_enabled(model.training):
            parts.append(_log_probs(model, {"input_ids": document[None]}))
        if model.training and len(document) > 1:
            summed_loss(parts[-1], [document]).backward()
    longest = max(range(len(documents)), key=LENGTHS.__getitem__)
    followed = torch.cat([documents[longest], *documents])[None]
    with torch.no_grad():
        again = _log_probs(model, {"input_ids": followed})[: LENGTHS[longest]]
    taken = gradients(model) if model.training else None
    return _Alone(torch.cat(parts).detach(), taken, _largest(again, parts[longest].detach()))


def _compare(model: nn.Module, documents: list[torch.Tensor], form: str, alone: _Alone) -> dict[str, Any]:
    try:
        with torch.set_grad_enabled(model.training):
            got = _log_probs(model, batch(documents, form))
        apart, worst = _largest(got, alone.log_probs), None
        if alone.gradients is not None:
            summed_loss(got, documents).backward()
            worst = relative_error(gradients(model), alone.gradients)
    except Exception as error:  # what a release raises on a packed row is what the census is to say
        model.zero_grad(set_to_none=True)
        return {"result": "raises", "detail": _line(error)}
    figures = {"log_probs": apart, "gradients": worst}
    if apart <= LOG_PROBS and (worst is None or worst <= GRADIENTS):
        return {"result": "isolated", **figures}
    if _reach(model, documents, form) > MOVED:
        return {"result": "leaks", **figures}
    detail = f"unpacked, the longest document is {alone.unsteady:.0e} from itself when other tokens follow it"
    return {"result": "differs", **figures, "detail": detail}


def _reach(model: nn.Module, documents: list[torch.Tensor], form: str) -> float:
    """How far the documents move when a token of the first is another."""
    changed = [documents[0].clone(), *documents[1:]]
    changed[0][3] = 3 if changed[0][3] != 3 else 4
    with torch.no_grad():
        before, after = (_log_probs(model, batch(row, form))[len(documents[0]) :] for row in (documents, changed))
    return _largest(before, after)


def batch(documents: list[torch.Tensor], form: str) -> dict[str, torch.Tensor | int]:
    """The documents in one row, as TRL's collators emit it in either form."""
    row = packed_row(documents, seq_idx=form == "seq_idx")
    del row["labels"]
    if form == "seq_idx":
        ends = torch.tensor([0, *map(len, documents)]).cumsum(0).int()
        longest = max(map(len, documents))
        row |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    return row


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def _log_probs(model: nn.Module, inputs: dict[str, Any]) -> torch.Tensor:
    return model(**inputs, use_cache=False).logits[0].float().log_softmax(-1)


def _largest(got: torch.Tensor, wanted: torch.Tensor) -> float:
    difference = (got.detach() - wanted).abs()
    return float(difference.max()) if bool(difference.isfinite().all()) else float("inf")
