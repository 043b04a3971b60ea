"""Decides, before TRL reads `packing`, whether a trainer may pack its documents."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from patcher._log import logger, say_once
from replacements.packing import settings
from replacements.packing.families import known_mixer
from replacements.packing.parallelism import split_rows
from replacements.packing.rules import RULES
from replacements.packing.situation import Situation
from replacements.packing.verdict import LEAVE, PACK, Reason, Verdict, warn_once


class PackingRefusedError(ValueError):
    """Packing was asked for and would be unsafe, and training padded was ruled out or is not possible."""


def choose(trainer: Any, **situation: Any) -> Any:
    """Called by the rewritten `SFTTrainer.__init__` on its arguments; returns the `args` to go on with.

    The user's own `args` are never written to: one config may build several trainers.

    Raises:
        PackingRefusedError: Packing is unsafe and `PATCHER_ON_UNSAFE=raise`, or the rows cannot be trained padded.
        SettingError: An environment variable of this package has a value that means nothing.
    """
    settings.check()
    facts = Situation(**situation)
    verdict = judge(facts)
    trainer._patcher_verdict = verdict
    if verdict.action in ("pack", "leave"):
        return facts.args
    announce(verdict)
    return padded(facts.args)


def announce(verdict: Verdict) -> None:
    """Says that a trainer is not packed: raises if it is refused, else warns once.

    Raises:
        PackingRefusedError: The verdict is to refuse, or to pad and `PATCHER_ON_UNSAFE=raise`.
    """
    if verdict.action == "refuse":
        raise PackingRefusedError(f"This trainer cannot be built safely [{verdict.reason.code}]: {verdict.sentence}")
    if verdict.action == "pad" and settings.raise_when_unsafe():
        raise PackingRefusedError(
            f"Packing is unsafe here [{verdict.reason.code}]: {verdict.sentence} To train padded, set "
            "`packing=False, padding_free=False` or `PATCHER_ON_UNSAFE=pad`."
        )
    warn_once(verdict)


def padded(args: Any) -> Any:
    """A copy of `args` that packs nothing."""
    args = copy.copy(args)
    args.packing = args.padding_free = False
    if getattr(args, "eval_packing", None):
        args.eval_packing = False
    return args


def judge(facts: Situation, rules: Sequence[Callable[[Situation], Verdict | None]] = RULES) -> Verdict:
    """The verdict on a trainer: the first reason against packing, else `pack`.

    Raises:
        SettingError: An environment variable of this package has a value that means nothing.
    """
    _mention_split(facts)
    if not asks(facts):
        _mention_wrapped(facts)
        _mention_unread(facts)
        return LEAVE
    try:
        return _first_against(facts, rules) or PACK
    except settings.SettingError:
        raise
    except Exception as error:  # a foreign model or dataset that cannot even be read is not packed
        detail = f"{type(error).__name__}: {error}"
        return Verdict.against(Reason.UNREADABLE, model=type(facts.model).__name__, detail=detail)


def asks(facts: Situation) -> bool:
    """Whether anything here puts several documents into one row that are to be kept apart."""
    try:
        return facts.asks
    except Exception:  # the settings ask for nothing, and a dataset that cannot be read is TRL's to complain of
        logger.debug("The datasets of a trainer could not be read; it is left alone.", exc_info=True)
        return False


def _first_against(facts: Situation, rules: Sequence[Callable[[Situation], Verdict | None]]) -> Verdict | None:
    verdicts = (rule(facts) for rule in rules)
    verdict = next((verdict for verdict in verdicts if verdict is not None), None)
    return None if verdict is None else _or_refused(facts, verdict)


def _or_refused(facts: Situation, verdict: Verdict) -> Verdict:
    """The verdict, or a refusal where rows come packed whatever the trainer's settings say."""
    if verdict.action != "pad":
        return verdict
    if facts.packed_beforehand:
        return Verdict.against(Reason.PACKED_BEFOREHAND, refuse=True, why=verdict.sentence, code=verdict.reason.code)
    if facts.flattens:
        name = type(facts.data_collator).__name__
        return Verdict.against(
            Reason.FLATTENING_COLLATOR, refuse=True, why=verdict.sentence, code=verdict.reason.code, detail=name
        )
    return verdict


def _mention_wrapped(facts: Situation) -> None:
    packs = facts.args.packing or getattr(facts.args, "eval_packing", None)
    if packs and facts.wrapped and _has_mixers(facts.model):
        say_once(
            "wrapped",
            "packing_strategy='wrapped' cuts one stream of tokens into blocks: documents run into one another by its "
            "definition, and nothing here keeps them apart. Use packing_strategy='bfd' to keep them apart.",
        )


def _mention_unread(facts: Situation) -> None:
    """Nobody asked to pack, and the rows are packed: TRL trains them as it always did, without a word."""
    try:
        name = facts.unread_boundaries
    except Exception:  # a dataset that cannot be read is TRL's to complain of
        logger.debug("The rows of a dataset could not be read.", exc_info=True)
        return
    if name is not None:
        say_once("unread", Reason.UNREAD_BOUNDARIES.value.format(detail=name))


def _mention_split(facts: Situation) -> None:
    """Without packing it is wrong as well, and nobody else says so of every recurrent layer."""
    try:
        split = split_rows(facts.args)
    except ValueError:  # a size in the environment that is no number: accelerate's to complain of
        return
    if split is not None and _has_mixers(facts.model):
        say_once(
            "split",
            f"{facts.model_name} carries state along the row, and {split[0]}={split[1]} splits rows between devices, "
            "which hands no state across: the model is not computed as defined, packed or padded. Set "
            f"{split[0]}=1.",
        )


def _has_mixers(model: Any) -> bool:
    if not isinstance(model, nn.Module):
        return False
    return any(known_mixer(name, module) for name, module in model.named_modules())
