"""What the rewritten `SFTTrainer` calls when it is complete."""

from __future__ import annotations

from typing import Any

from replacements.packing.collator import request_boundaries
from replacements.packing.runtime import attach


def prepare(trainer: Any) -> None:
    """Attaches the runtime to a finished trainer whose verdict is to pack; leaves every other trainer alone."""
    verdict = vars(trainer).get("_patcher_verdict")
    if verdict is not None and verdict.action == "pack":
        attach(trainer.model)
        request_boundaries(trainer.data_collator)
