"""`patcher check`: whether a model is safe to pack here, found out by running it."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import nn

from patcher._log import logger
from patcher._version import package_version
from replacements.packing.checking import kinds, memory, rows, source
from replacements.packing.checking.depth import decoder_layers
from replacements.packing.checking.report import LayerKind, Report
from replacements.packing.checking.small import small_model
from replacements.packing.checking.speed import backends_of
from replacements.packing.families import SEQ_IDX
from replacements.packing.guard import judge
from replacements.packing.measuring import largest_difference, log_probs, packed_row, undisturbed
from replacements.packing.probe import why_not
from replacements.packing.rules import judge_by_probe, judge_encoder_decoder, judge_mixers
from replacements.packing.situation import Situation, unwrapped
from replacements.packing.structure import Anatomy
from replacements.packing.texts import one_line
from replacements.packing.verdict import Reason

if TYPE_CHECKING:
    from replacements.packing.checking.kinds import Moved
    from replacements.packing.verdict import Verdict

_PACKING = SimpleNamespace(packing=True, padding_free=False, packing_strategy="bfd")
#: What a model takes beside its weights, as a factor: the activations of a short row, a shard that is being read.
_ROOM = 1.1
#: The guard's rules that ask about the model alone.
MODEL_RULES = (judge_encoder_decoder, judge_mixers, judge_by_probe)


@dataclass(frozen=True)
class _Subject:
    """A model to run, and what it stands for."""

    model: nn.Module
    name: str
    weights: str
    layers: int
    modules: Counter[str]
    notes: tuple[str, ...] = ()


def check(
    model: nn.Module | str | os.PathLike[str], *, weights: bool = True, trust_remote_code: bool = False
) -> Report:
    """Whether a model is safe to pack with the installed TRL, transformers and kernels.

    Two documents share a row, and the first is exchanged: what moves in the second has leaked. That is measured as
    transformers runs the model, and with the patch, for the whole model and for each kind of layer.

    Args:
        model: A causal language model; or a folder, a `config.json` or a hub id. Without weights a small random model
            of the same architecture is run, with at least one of every kind of layer.
        weights: Whether weights are loaded where there are any; weights are never downloaded.
        trust_remote_code: Whether code that comes with the model may run.

    Raises:
        CannotCheckError: There is no such model, no way to it, or it is none; the message says what to do.
    """
    with rows.quiet():
        subject = _given(model) if isinstance(model, nn.Module) else _named(model, weights, trust_remote_code)
        return _examined(subject)


def judged(model: nn.Module) -> Verdict:
    """The guard's verdict on a model as such, whatever the trainer."""
    return judge(Situation(model, _PACKING), MODEL_RULES)


def _given(model: nn.Module) -> _Subject:
    layers = decoder_layers(model)
    return _Subject(model, type(unwrapped(model)).__name__, "its own", len(layers), _count(layers))


def _named(reference: str | os.PathLike[str], weights: bool, trust_remote_code: bool) -> _Subject:
    found = source.find(reference, trust_remote_code)
    notes: tuple[str, ...] = ()
    if weights and found.weights is not None:
        needed, free = _ROOM * found.bytes_of_weights, memory.free()
        if needed <= free:
            model = found.load(trust_remote_code)
            why = why_not(model)
            if not why:
                layers = decoder_layers(model)
                return _Subject(model, found.name, "its own", len(layers), _count(layers))
        else:
            why = f"they need {memory.in_words(needed)}, and {memory.in_words(free)} are free on {memory.device()}"
        notes = (f"A small random model stands for the weights: {why}.",)
    small = small_model(found.config, trust_remote_code)
    notes = (*notes, *filter(None, [small.note]))
    return _Subject(small.model.to(memory.device()), found.name, "random, small", small.layers, small.modules, notes)


def _examined(subject: _Subject) -> Report:
    model = subject.model
    verdict = judged(model)
    notes = list(subject.notes)
    stock_nats = patched_nats = stock = patched = None
    reason = why_not(model)
    if reason:
        notes.append(f"The model was not run: {reason}.")
    elif verdict.reason is not Reason.ENCODER_DECODER:
        with undisturbed(model), torch.no_grad():
            with rows.stock(model):
                stock_nats, stock = _measured(model, notes, seq_idx=False)
            # A model that is padded for a leak is measured as well: the leak is what the table is to show.
            if verdict.action == "pack" or verdict.reason in (Reason.LEAK, Reason.PROBE_FAILED):
                with rows.patched(model):
                    patched_nats, patched = _measured(model, notes, seq_idx=True)
    ops = {type(part).__name__: mixer.ops for part, mixer in Anatomy.of(model).mixers.items()}
    device = next(model.parameters()).device.type
    used, install = backends_of(dict.fromkeys(op for each in ops.values() for op in each if op != SEQ_IDX), device)
    return Report(
        model=subject.name,
        built=type(unwrapped(model)).__name__,
        weights=subject.weights,
        layers=subject.layers,
        verdict=verdict,
        stock=stock_nats,
        patched=patched_nats,
        kinds=tuple(_kinds(subject, ops, stock, patched)),
        backends=tuple(used),
        install=tuple(install),
        device=device,
        versions=_versions(),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measured(model: nn.Module, notes: list[str], *, seq_idx: bool) -> tuple[float | None, Moved | None]:
    """How far the model moves, and its parts; what cannot be run is `None` and leaves a note."""
    which = "patched" if seq_idx else "stock"
    nats = parts = None
    try:
        sample = rows.Rows.of(model)
        packed, moved = (
            log_probs(model, packed_row(documents, seq_idx=seq_idx), slice(rows.FIRST, None))
            for documents in (sample.row, sample.neighbour)
        )
        nats = largest_difference(packed, moved)
    except Exception as error:  # foreign models fail in their own ways
        logger.debug("The %s model could not run a packed row.", which, exc_info=True)
        notes.append(f"The {which} model could not run a packed row: {one_line(error, 200)}")
    try:
        parts = kinds.moved(model, seq_idx=seq_idx)
    except Exception as error:
        logger.debug("The layers of the %s model could not be told apart.", which, exc_info=True)
        notes.append(f"The {which} model could not be taken apart: {one_line(error, 200)}")
    return nats, parts


def _kinds(
    subject: _Subject, ops: dict[str, tuple[str, ...]], stock: Moved | None, patched: Moved | None
) -> list[LayerKind]:
    found = []
    seen = [moved for moved in (stock, patched) if moved is not None]
    for name in dict.fromkeys(kind for moved in seen for kind in moved.leak):
        isolated = tuple(None if moved is None else moved.isolated(name) for moved in (stock, patched))
        if False not in isolated and not any(name in moved.mixes for moved in seen):
            continue
        values = (None if moved is None else moved.leak.get(name, 0.0) for moved in (stock, patched))
        found.append(LayerKind(name, subject.modules[name], ops.get(name, ()), *values, isolated))
    return sorted(found, key=lambda kind: (not kind.ops, kind.name))


def _count(layers: list[nn.Module]) -> Counter[str]:
    return Counter(type(part).__name__ for layer in layers for part in layer.modules())


def _versions() -> dict[str, str]:
    return {name: package_version(name) or "not installed" for name in ("torch", "transformers", "trl")}
