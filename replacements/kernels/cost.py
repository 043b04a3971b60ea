"""Which chunk size and layout is cheapest for a row's lengths."""

from __future__ import annotations

import torch

from .chunking import ChunkPlan
from .segments import Segments


def delta_rule_plan(segments: Segments, device: torch.device, key: int, value: int, heads: int) -> ChunkPlan:
    """The chunk plan for a delta rule with states ``[key, value]``."""
    return segments.chunks(64, device, "row")
