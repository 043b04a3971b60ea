"""Which chunk size and layout is cheapest for a row's lengths.

Small chunks waste fewer slots on short documents and spend less on pairs of slots; large ones have fewer links, each a
matrix of states, and fewer sequential steps. The counts of a candidate follow from the lengths alone, so all
candidates are compared before any plan is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import numpy as np
import torch

from ..chunking import ChunkPlan, Layout
from ..segments import Segments


@dataclass(frozen=True)
class Counts:
    """Chunks of a plan, the links between them, and the sequential steps of the scan over them."""

    chunks: int
    links: int
    steps: int

    @classmethod
    def of(cls, segments: Segments, size: int, layout: Layout) -> Counts:
        """What `Segments.chunks` would return, counted without building it."""
        if layout == "row":
            first = segments.offsets[:-1] // size
            last = (segments.offsets[1:] - 1) // size
            pieces = last - first + 1
            chunks = -(-segments.total // size)
        else:
            pieces = -(-segments.lengths // size)
            chunks = int(pieces.sum())
            short = segments.lengths[segments.lengths <= size // 2]
            if layout == "shared" and short.size:
                room = 2 ** np.ceil(np.log2(short)).astype(np.int64)
                chunks += -(-int(room.sum()) // size) - short.size
        return cls(chunks, int(pieces.sum()) - segments.count, int(pieces.max()) - 1)


@dataclass(frozen=True)
class Rates:
    """Nanoseconds of a forward and backward pass, per number touched.

    Attributes:
        slot: Per slot, head and channel of a query or value.
        level: The same for each doubling of the chunk that a decay per channel takes.
        pair: Per pair of slots and head.
        pair_product: Per pair of slots, head and channel: what the matrix products add.
        state: Per link, head and number of the state.
        state_product: Per link, head, number of the state and slot.
        step: Per sequential step.
        sizes: Chunk sizes worth trying.
    """

    slot: float
    level: float
    pair: float
    pair_product: float
    state: float
    state_product: float
    step: float
    sizes: tuple[int, ...]

    def cost(self, counts: Counts, size: int, key: int, value: int, heads: int, channels: bool) -> float:
        """Estimated nanoseconds of a plan with these counts."""
        width = (key + value) / 2
        slot = width * (self.slot + self.level * log2(size) * channels) + size * (self.pair + self.pair_product * width)
        link = key * value * (self.state + self.state_product * size)
        return heads * (counts.chunks * size * slot + counts.links * link) + counts.steps * self.step


# Fitted to T = 4,096, 8 heads of 64, float32, 1 to 4,000 documents on one core of a server CPU.
_CPU = Rates(50, 25, 25, 0.8, 15, 0.4, 60_000, (16, 32, 64))
# From bytes moved (4 TB/s), products (300 TFLOP/s) and launches (12 us, three a step) of an H200-class card.
_GPU = Rates(0.12, 0.06, 0.05, 1e-4, 0.024, 1e-4, 36_000, (16, 32, 64, 128))


def delta_rule_plan(
    segments: Segments, device: torch.device, key: int, value: int, heads: int, channels: bool = False
) -> ChunkPlan:
    """The cheapest chunk plan for a delta rule with states ``[key, value]``, decaying per channel or as a whole."""
    rates = _CPU if device.type == "cpu" else _GPU

    def choose() -> tuple[int, Layout]:
        candidates = [(size, layout) for size in rates.sizes for layout in ("row", "shared")]
        return min(candidates, key=lambda c: rates.cost(Counts.of(segments, *c), c[0], key, value, heads, channels))

    size, layout = segments.cached(("delta rule", device.type, key, value, heads, channels), choose)
    return segments.chunks(size, device, layout)
