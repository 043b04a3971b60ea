"""What the guard says of a trainer: pack, pad or refuse, and why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

logger = logging.getLogger("patcher")


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
    CUSTOM_COLLATOR = (
        "The trainer was given its own data collator ({detail}), which does not say where documents start. "
        "Leave `data_collator` out to pack."
    )
    VISION_DATA = "The dataset has images ({detail}), and TRL packs text only. Remove the column to pack its text."
    UNKNOWN_STREAM = (
        "{model} is a vision-language model and the dataset is a stream whose columns are not known, so it may hold "
        "images. Give the stream its features (`IterableDataset.cast` or `features=`) to pack it."
    )
    SWITCHED_OFF = "`PATCHER_HYBRID_PACKING=0` turns packing off for hybrid models. Unset it to pack."

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

_warned: set[Reason] = set()


def warn_once(verdict: Verdict) -> None:
    """Logs why a trainer is padded, once per reason and process."""
    if verdict.reason is not None and verdict.reason not in _warned:
        _warned.add(verdict.reason)
        logger.warning("Training padded instead of packed [%s]: %s", verdict.reason.code, verdict.sentence)
