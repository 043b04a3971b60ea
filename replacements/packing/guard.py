"""Decides, before TRL reads `packing`, whether a trainer may pack its documents."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replacements.packing import dispatch, settings
from replacements.packing.probe import probe
from replacements.packing.runtime import attach
from replacements.packing.structure import Anatomy
from replacements.packing.verdict import LEAVE, PACK, Reason, Verdict, logger, warn_once

if TYPE_CHECKING:
    from torch import nn

_VISION_COLUMNS = ("image", "images", "pixel_values", "video", "videos")


class PackingRefusedError(ValueError):
    """Packing was asked for and would be unsafe; raised under `PATCHER_ON_UNSAFE=raise`."""


@dataclass(frozen=True)
class Situation:
    """What the guard decides from, as `SFTTrainer.__init__` has it before it reads `packing`."""

    model: nn.Module
    args: Any
    data_collator: Any = None
    train_dataset: Any = None
    eval_dataset: Any = None
    processing_class: Any = None

    @property
    def asks(self) -> bool:
        """Whether anything here puts several documents into one row."""
        args = self.args
        return bool(args.packing or args.padding_free or getattr(args, "eval_packing", None))

    @property
    def model_name(self) -> str:
        """Class name of the transformers model."""
        return type(unwrapped(self.model)).__name__


def choose(trainer: Any, **situation: Any) -> Any:
    """Called by the rewritten `SFTTrainer.__init__` on its arguments; returns the `args` to go on with.

    The user's own `args` are never written to: one config may build several trainers.

    Raises:
        PackingRefusedError: Packing is unsafe and `PATCHER_ON_UNSAFE=raise`.
    """
    facts = Situation(**situation)
    verdict = judge(facts)
    trainer._patcher_verdict = verdict
    if verdict.action in ("pack", "leave"):
        return facts.args
    if verdict.action == "refuse" or settings.raise_when_unsafe():
        raise PackingRefusedError(
            f"Packing is unsafe here [{verdict.reason.code}]: {verdict.sentence} To train padded, set "
            "`packing=False, padding_free=False` or `PATCHER_ON_UNSAFE=pad`."
        )
    warn_once(verdict)
    return padded(facts.args)


def padded(args: Any) -> Any:
    """A copy of `args` that packs nothing."""
    args = copy.copy(args)
    args.packing = args.padding_free = False
    if getattr(args, "eval_packing", None):
        args.eval_packing = False
    return args


def judge(facts: Situation) -> Verdict:
    """The verdict on a trainer: the first reason against packing, else `pack`."""
    if not facts.asks:
        return LEAVE
    for rule in RULES:
        verdict = rule(facts)
        if verdict is not None:
            return verdict
    return PACK


def judge_encoder_decoder(facts: Situation) -> Verdict | None:
    """An encoder has no notion of documents in a row."""
    if getattr(unwrapped(facts.model).config, "is_encoder_decoder", False):
        return Verdict.against(Reason.ENCODER_DECODER, model=facts.model_name)
    return None


def judge_mixers(facts: Situation) -> Verdict | None:
    """Every layer that carries state must be known, and reachable in this transformers."""
    anatomy = Anatomy.of(facts.model)
    if anatomy.unknown:
        detail = _listed(f"{name}: {type(module).__name__}" for name, module in anatomy.unknown.items())
        return Verdict.against(Reason.UNSUPPORTED_MIXER, model=facts.model_name, detail=detail)
    if anatomy.mixers and not settings.hybrid_packing():
        return Verdict.against(Reason.SWITCHED_OFF, model=facts.model_name)
    missing = dispatch.unreachable(anatomy.mixers)
    if missing:
        return Verdict.against(Reason.NO_DISPATCH, model=facts.model_name, detail=_listed(missing))
    return None


def judge_collator(facts: Situation) -> Verdict | None:
    """A collator of the user's own does not emit boundaries; `wrapped` rows need none."""
    flattens = facts.args.padding_free or facts.args.packing_strategy != "wrapped"
    if facts.data_collator is not None and flattens:
        return Verdict.against(Reason.CUSTOM_COLLATOR, detail=type(facts.data_collator).__name__)
    return None


def judge_data(facts: Situation) -> Verdict | None:
    """TRL packs text; a stream is never consumed to find out what it holds."""
    datasets = facts.eval_dataset if isinstance(facts.eval_dataset, dict) else {"eval": facts.eval_dataset}
    for dataset in (facts.train_dataset, *datasets.values()):
        columns = getattr(dataset, "column_names", None) if dataset is not None else ()
        if columns is None and _sees(facts.model):
            return Verdict.against(Reason.UNKNOWN_STREAM, model=facts.model_name)
        seen = [name for name in columns or () if name in _VISION_COLUMNS]
        if seen:
            return Verdict.against(Reason.VISION_DATA, detail=f"column {seen[0]!r}")
    return None


def judge_by_probe(facts: Situation) -> Verdict | None:
    """What the model does decides, whatever it is called."""
    runtime = attach(facts.model)
    try:
        seen = probe(facts.model)
    except Exception as error:  # whatever a foreign model raises on a packed row is the reason not to pack it
        detail = f"{type(error).__name__}: {error}"
        return Verdict.against(Reason.PROBE_FAILED, model=facts.model_name, detail=detail)
    finally:
        runtime.detach()
    if seen.skipped:
        logger.info("The isolation probe was skipped, %s; the first packed step is checked instead.", seen.skipped)
    if seen.isolated:
        return None
    detail = (
        f"a changed neighbour moved a document by {seen.neighbour:.1e} nats, packed it is {seen.apart:.1e} from "
        f"itself alone, and the model's noise is {seen.noise:.1e}"
    )
    return Verdict.against(Reason.LEAK, model=facts.model_name, detail=detail)


#: Asked in this order; the first that answers decides.
RULES = (judge_encoder_decoder, judge_collator, judge_data, judge_mixers, judge_by_probe)


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside a PEFT wrapper."""
    base = getattr(model, "get_base_model", None)
    return base() if base is not None else model


def _sees(model: nn.Module) -> bool:
    config = unwrapped(model).config
    return getattr(config, "vision_config", None) is not None


def _listed(names: Any, most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
