"""Whether the families of the installed transformers keep packed documents apart, stock and patched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import nn

from replacements.packing.guard import Situation, judge
from replacements.packing.measuring import largest_difference, log_probs, packed_row, random_documents
from replacements.packing.runtime import attach, detach_all
from replacements.packing.texts import one_line
from replacements.packing.tolerances import LOG_PROB
from replacements.packing.verdict import Verdict
from tools.tiny_models import exists, gradients, relative_error, summed_loss, tiny_model

#: Single tokens, a document over the edge of a chunk of 64, one that fills a chunk.
LENGTHS = (23, 1, 1, 70, 64, 5)
#: Largest difference of a log-probability, and of a gradient relative to the parameter's largest, that is rounding.
LOG_PROBS, GRADIENTS = LOG_PROB, 1e-4
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

    if not exists(family):
        yield from everywhere("absent")
        return
    try:
        model = tiny_model(family, runs=True)
    except RuntimeError as error:
        yield from everywhere("not built", str(error))
        return
    documents = random_documents(model, LENGTHS)
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
                yield Row(family, version, patched, mode, form, "raises", detail=f"unpacked, {one_line(error, 160)}")
            continue
        with _attached(model, patched):
            for form in FORMS:
                yield Row(family, version, patched, mode, form, **_compare(model, documents, form, alone))


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
            parts.append(log_probs(model, {"input_ids": document[None]}))
        if model.training and len(document) > 1:
            summed_loss(parts[-1], [document]).backward()
    longest = max(range(len(documents)), key=LENGTHS.__getitem__)
    followed = torch.cat([documents[longest], *documents])[None]
    with torch.no_grad():
        again = log_probs(model, {"input_ids": followed})[: LENGTHS[longest]]
    taken = gradients(model) if model.training else None
    return _Alone(torch.cat(parts).detach(), taken, largest_difference(again, parts[longest]))


def _compare(model: nn.Module, documents: list[torch.Tensor], form: str, alone: _Alone) -> dict[str, Any]:
    try:
        with torch.set_grad_enabled(model.training):
            got = log_probs(model, batch(documents, form))
        apart, worst = largest_difference(got, alone.log_probs), None
        if alone.gradients is not None:
            summed_loss(got, documents).backward()
            worst = relative_error(gradients(model), alone.gradients)
    except Exception as error:  # what a release raises on a packed row is what the census is to say
        model.zero_grad(set_to_none=True)
        return {"result": "raises", "detail": one_line(error, 160)}
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
        before, after = (log_probs(model, batch(row, form))[len(documents[0]) :] for row in (documents, changed))
    return largest_difference(before, after)


def batch(documents: list[torch.Tensor], form: str) -> dict[str, torch.Tensor | int]:
    """The documents in one row, as TRL's collators emit it in either form."""
    row: dict[str, Any] = packed_row(documents, seq_idx=form == "seq_idx")
    if form == "seq_idx":
        ends = torch.tensor([0, *map(len, documents)]).cumsum(0).int()
        longest = max(map(len, documents))
        row |= {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    return row
