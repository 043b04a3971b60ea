"""The model families whose mixers carry state along the row: one row a family.

A row says where the mixers live and which ops they run. How kernels are reached in each transformers generation is in
`dispatch.py`, under which names and how their arguments read in `adapters.py`; a family needs neither to be taught.
"""

from __future__ import annotations

from dataclasses import dataclass

CONV = "causal_conv1d"
GATED_DELTA = "gated_delta_rule"
KDA = "kimi_delta_attention"
SSD = "ssd"
SELECTIVE_SCAN = "selective_scan"


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        name: `model_type` of the text config.
        mixers: Class names of the mixers.
        ops: Ops that each mixer runs; each must use the boundaries.
    """

    name: str
    mixers: tuple[str, ...]
    ops: tuple[str, ...]

    @property
    def module(self) -> str:
        """The module that defines the mixers."""
        return f"transformers.models.{self.name}.modeling_{self.name}"


FAMILIES: tuple[Family, ...] = (
    Family("qwen3_next", ("Qwen3NextGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("qwen3_5", ("Qwen3_5GatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("qwen3_5_moe", ("Qwen3_5MoeGatedDeltaNet",), (CONV, GATED_DELTA)),
)

_BY_CLASS = {(family.module, mixer): family for family in FAMILIES for mixer in family.mixers}


def family_of(module: object) -> Family | None:
    """The family that defines the class of `module` or one of its bases; `None` if it is no known mixer."""
    for cls in type(module).__mro__:
        family = _BY_CLASS.get((cls.__module__, cls.__name__))
        if family is not None:
            return family
    return None
