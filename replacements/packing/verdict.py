"""What the guard says of a trainer: pack, pad or refuse, and why."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from patcher._log import say_once


class Reason(Enum):
    """Why a trainer is not packed: the code, and the sentence with what to do."""

    ENCODER_DECODER = (
        "{model} is an encoder-decoder: its encoder reads every document of a packed row at once. "
        "Nothing to do; encoder-decoders train padded."
    )
    UNSUPPORTED_MIXER = (
        "{model} carries state along the row in layers that no op here keeps apart ({detail}). "
        "Check for a newer trl-patcher, or add the family to its table."
    )
    NO_DISPATCH = (
        "The kernels of {model} are not called where they were looked for ({detail}), so they cannot be given the "
        "boundaries. This transformers release is newer than this trl-patcher: check for an update."
    )
    LEAK = (
        "{model} was probed and does not keep documents apart: {detail}. Its layers carry something from one document "
        "into the next that no op here isolates. `patcher check` shows which; please report it."
    )
    PROBE_FAILED = (
        "{model} could not run a packed row: {detail}. Please report it; it trains padded as without packing."
    )
    UNREADABLE = (
        "{model} could not be examined: {detail}. Pass a transformers model and its dataset as TRL documents them; "
        "if they are, please report it."
    )
    CUSTOM_COLLATOR = (
        "The trainer was given its own data collator ({detail}), which does not say where documents start. "
        "Leave `data_collator` out to pack."
    )
    VISION_DATA = "The dataset has images ({detail}), and TRL packs text only. Remove the column to pack its text."
    UNKNOWN_STREAM = (
        "{model} is a vision-language model and the dataset is a stream whose columns are not known, so it may hold "
        "images. Give the stream its features (`IterableDataset.cast` or `features=`) to pack it."
    )
    PROCESSOR = (
        "This TRL release packs with a tokenizer only, and the processing class is a processor ({detail}). Pass "
        "`processing_class=processor.tokenizer` to pack text."
    )
    CONTEXT_PARALLELISM = (
        "Context parallelism (`cp_size={detail}`) splits rows between devices and drops the mask that keeps documents "
        "apart. Set `cp_size=1` to pack."
    )
    SEQUENCE_PARALLELISM = (
        "Sequence parallelism (`sp_size={detail}`, Ulysses or ALST) splits rows between devices: each would see the "
        "boundaries of its own part only. Set `sp_size=1` to pack."
    )
    PROMPT_LEARNING = (
        "Prompt learning ({detail}) puts tokens of its own in front of a row, so that they precede its first document "
        "only and the boundaries no longer fit. Use an adapter of the weights, such as LoRA, to pack."
    )
    SWITCHED_OFF = "`PATCHER_HYBRID_PACKING=0` turns packing off for hybrid models ({model}). Unset it to pack."
    ROW_SCALED = (
        "{model} scales attention by the place of a token in the row (`{detail}` of its config), so that a document is "
        "not itself behind another. Leave `packing` and `padding_free` off."
    )
    PREPARED_TWICE = (
        "The rows of the dataset are packed already (column `seq_lengths`), and TRL would prepare them again: it takes "
        "a row for a document, and truncates it without its lengths. Pass "
        "`dataset_kwargs={{'skip_prepare_dataset': True}}`, or drop the column if each row is one document."
    )
    UNREAD_BOUNDARIES = (
        "The rows of the dataset hold several documents by their column `{detail}`, which TRL drops: each row would be "
        "trained as one document. Give the lengths of each row's documents as a column `seq_lengths` and pass "
        "`dataset_kwargs={{'skip_prepare_dataset': True}}`, or pass the documents as rows of their own."
    )
    PACKED_BEFOREHAND = (
        "The rows of the dataset are packed already (column `seq_lengths`), so they cannot be trained padded, and "
        "packing is unsafe [{code}]: {why} Pass the documents as rows of their own."
    )
    FLATTENING_COLLATOR = (
        "The data collator ({detail}) joins the documents of a batch into one row, so they cannot be trained padded, "
        "and packing is unsafe [{code}]: {why} Leave `data_collator` out to train padded."
    )

    @property
    def code(self) -> str:
        """Stable name for logs and JSON, such as `encoder-decoder`."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True)
class Verdict:
    """The guard's answer.

    Attributes:
        action: `pack`; `pad`, train padded; `refuse`, stop with an error; `leave`, nothing was asked.
        reason: Why not, for `pad` and `refuse`.
        sentence: The same for the user, with what to do.
        evidence: What it was decided from, for logs and JSON.
    """

    action: str
    reason: Reason | None = None
    sentence: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def against(cls, reason: Reason, *, refuse: bool = False, **facts: Any) -> Verdict:
        """A verdict not to pack; `facts` fill the reason's sentence and become the evidence."""
        return cls("refuse" if refuse else "pad", reason, reason.value.format(**facts), facts)


PACK = Verdict("pack")
LEAVE = Verdict("leave")


def warn_once(verdict: Verdict) -> None:
    """Logs why a trainer is padded, once per reason and process."""
    if verdict.reason is not None:
        code = verdict.reason.code
        say_once(code, f"Training padded instead of packed [{code}]: {verdict.sentence}")
