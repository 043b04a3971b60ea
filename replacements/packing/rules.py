"""The reasons against packing: one rule each, which answers with a verdict or says nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from patcher._log import logger
from replacements.packing import dispatch, settings
from replacements.packing.parallelism import CONTEXT, split_rows
from replacements.packing.probe import probe
from replacements.packing.runtime import attach, runtime_of
from replacements.packing.situation import Situation, columns_of, unwrapped
from replacements.packing.structure import Anatomy
from replacements.packing.verdict import Reason, Verdict

_VISION_COLUMNS = ("image", "images", "pixel_values", "video", "videos")


def judge_preparation(facts: Situation) -> Verdict | None:
    """TRL takes a row for a document when it prepares a dataset; the lengths inside the row are lost."""
    if facts.packed_beforehand and facts.prepares:
        return Verdict.against(Reason.PREPARED_TWICE, refuse=True)
    return None


def judge_unread_boundaries(facts: Situation) -> Verdict | None:
    """What a row says of its documents by a column that is dropped is lost before a batch is made."""
    name = facts.unread_boundaries
    return Verdict.against(Reason.UNREAD_BOUNDARIES, refuse=True, detail=name) if name else None


def judge_encoder_decoder(facts: Situation) -> Verdict | None:
    """An encoder has no notion of documents in a row."""
    config = unwrapped(facts.model).config
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    if any(getattr(part, "is_encoder_decoder", False) is True for part in (config, text)):
        return Verdict.against(Reason.ENCODER_DECODER, model=facts.model_name)
    return None


def judge_collator(facts: Situation) -> Verdict | None:
    """A collator of the user's own does not emit boundaries, unless it is one that flattens."""
    if facts.data_collator is None or facts.flattens:
        return None
    if facts.own_collator is None and not (facts.args.packing or facts.args.padding_free):
        return None
    return Verdict.against(Reason.CUSTOM_COLLATOR, detail=type(facts.data_collator).__name__)


def judge_data(facts: Situation) -> Verdict | None:
    """TRL packs text; a stream is never consumed to find out what it holds."""
    for dataset in facts.datasets:
        seen = [name for name in columns_of(dataset) or () if name in _VISION_COLUMNS]
        if seen:
            return Verdict.against(Reason.VISION_DATA, detail=f"column {seen[0]!r}")
    if facts.streams_unknown_columns and facts.sees:
        return Verdict.against(Reason.UNKNOWN_STREAM, model=facts.model_name)
    return None


def judge_processor(facts: Situation) -> Verdict | None:
    """Older TRL packs with a tokenizer only; without a processing class it loads the processor of such a model."""
    from transformers import ProcessorMixin

    given = facts.processing_class
    is_processor = facts.sees if given is None else isinstance(given, ProcessorMixin)
    if is_processor and _trl_needs_tokenizer():
        return Verdict.against(Reason.PROCESSOR, detail=type(given).__name__ if given is not None else "loaded by TRL")
    return None


def _trl_needs_tokenizer() -> bool:
    """Whether `SFTTrainer` refuses to pack with a processor, as its own message says; newer TRL asks the dataset."""
    module = sys.modules.get("trl.trainer.sft_trainer")
    code = getattr(getattr(getattr(module, "SFTTrainer", None), "__init__", None), "__code__", None)
    texts = (constant for constant in getattr(code, "co_consts", ()) if isinstance(constant, str))
    return any(text.startswith("Packing is not supported for vision-language models") for text in texts)


def judge_parallelism(facts: Situation) -> Verdict | None:
    """A row that is split between devices has its boundaries on one of them, and attention loses its mask."""
    split = split_rows(facts.args)
    if split is None:
        return None
    name, size = split
    return Verdict.against(Reason.CONTEXT_PARALLELISM if name == CONTEXT else Reason.SEQUENCE_PARALLELISM, detail=size)


def judge_adapter(facts: Situation) -> Verdict | None:
    """Virtual tokens stand in front of a row, not of each document."""
    adapter = facts.adapter
    if getattr(adapter, "is_prompt_learning", False) is True:
        return Verdict.against(Reason.PROMPT_LEARNING, detail=type(adapter).__name__)
    return None


def judge_mixers(facts: Situation) -> Verdict | None:
    """Every layer that carries state must be known, and reachable in this transformers."""
    anatomy = Anatomy.of(facts.model)
    if anatomy.unknown:
        detail = _listed(f"{name}: {type(module).__name__}" for name, module in anatomy.unknown.items())
        return Verdict.against(Reason.UNSUPPORTED_MIXER, model=facts.model_name, detail=detail)
    if anatomy.mixers and not settings.hybrid_packing():
        return Verdict.against(Reason.SWITCHED_OFF, model=facts.model_name)
    config = unwrapped(facts.model).config.get_text_config()
    for option in {mixer.family.row_scaled for mixer in anatomy.mixers.values()} - {""}:
        if getattr(config, option, None) is not None:
            return Verdict.against(Reason.ROW_SCALED, model=facts.model_name, detail=option)
    missing = dispatch.unreachable(anatomy.mixers)
    if missing:
        return Verdict.against(Reason.NO_DISPATCH, model=facts.model_name, detail=_listed(missing))
    return None


def judge_by_probe(facts: Situation) -> Verdict | None:
    """What the model does decides, whatever it is called."""
    elsewhere = _trains_elsewhere(facts)
    if elsewhere == "moved later":
        logger.info("The isolation probe was skipped, the weights are placed later; the first packed step is checked.")
        return None
    if elsewhere:
        facts.model.to(elsewhere)
    ours = runtime_of(facts.model) is None  # another trainer of this model may have attached its own
    runtime = attach(facts.model)
    try:
        seen = probe(facts.model)
    except Exception as error:  # whatever a foreign model raises on a packed row is the reason not to pack it
        detail = f"{type(error).__name__}: {error}"
        return Verdict.against(Reason.PROBE_FAILED, model=facts.model_name, detail=detail)
    finally:
        if ours:
            runtime.detach()
    if seen.skipped:
        logger.info("The isolation probe was skipped, %s; the first packed step is checked instead.", seen.skipped)
    if seen.isolated:
        return None
    detail = (
        f"a changed neighbour moved a document by {seen.neighbour:.1e} nats, packed it is {seen.apart:.1e} from "
        f"itself alone, and rounding accounts for {max(seen.noise, seen.control):.1e}"
    )
    return Verdict.against(Reason.LEAK, model=facts.model_name, detail=detail)


def _trains_elsewhere(facts: Situation) -> Any:
    """The device to probe on, where the model is not there yet: kernels of an accelerator do not run on a CPU.

    The trainer moves the model there a moment later. `None` if it is in place, `moved later` if wrapping it comes
    first (FSDP, DeepSpeed).
    """
    device = getattr(facts.args, "device", None)
    if getattr(device, "type", "cpu") == "cpu" or any(p.device.type != "cpu" for p in facts.model.parameters()):
        return None
    sharded = getattr(facts.args, "deepspeed", None) or getattr(facts.args, "fsdp", None)
    launched = any(os.environ.get(f"ACCELERATE_USE_{name}", "").lower() in ("1", "true") for name in _WRAPPERS)
    return "moved later" if sharded or launched else device


_WRAPPERS = ("FSDP", "DEEPSPEED")

#: Asked in this order; the first that answers decides.
RULES = (
    judge_preparation,
    judge_unread_boundaries,
    judge_encoder_decoder,
    judge_collator,
    judge_data,
    judge_processor,
    judge_parallelism,
    judge_adapter,
    judge_mixers,
    judge_by_probe,
)

#: The same before weights are read, on a model without weights.
EARLY_RULES = RULES[:-1]


def _listed(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
