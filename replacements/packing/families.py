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


#: Not an op of ours: the mixer reads a `seq_idx` argument itself and only has to be given one.
SEQ_IDX = "seq_idx"


@dataclass(frozen=True)
class Family:
    """One row of the table.

    Attributes:
        name: `model_type` of the text config.
        mixers: Class names of the mixers.
        ops: Ops that each of them runs; each must use the boundaries.
        native: Class names of further mixers that keep documents apart themselves, given `seq_idx`.
        blind_mask: Whether the model builds its attention mask without looking at `position_ids`, so that the call
            has to be given them.
        row_scaled: Option of the config that scales attention by the place in the row; no document is then itself.
    """

    name: str
    mixers: tuple[str, ...]
    ops: tuple[str, ...]
    native: tuple[str, ...] = ()
    blind_mask: bool = False
    row_scaled: str = ""

    @property
    def module(self) -> str:
        """The module that defines the mixers."""
        return f"transformers.models.{self.name}.modeling_{self.name}"


FAMILIES: tuple[Family, ...] = (
    Family("qwen3_next", ("Qwen3NextGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("qwen3_5", ("Qwen3_5GatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("qwen3_5_moe", ("Qwen3_5MoeGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("qwen4_exp", ("Qwen4ExpTextGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("olmo_hybrid", ("OlmoHybridGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("lara_mini", ("LaraMiniGatedDeltaNet",), (CONV, GATED_DELTA)),
    Family("kimi_linear", ("KimiLinearDeltaAttention",), (CONV, KDA)),
    Family("bailing_hybrid", ("BailingHybridDeltaAttention",), (CONV, KDA)),
    Family("glm5_next", ("Glm5NextTextLinearAttention",), (CONV, KDA)),
    Family("mamba2", ("Mamba2Mixer",), (CONV, SSD)),
    Family("bamba", ("BambaMixer",), (CONV, SSD)),
    Family("falcon_h1", ("FalconH1Mixer",), (CONV, SSD)),
    Family("granitemoehybrid", ("GraniteMoeHybridMambaLayer",), (CONV, SSD), blind_mask=True),
    Family("zamba2", ("Zamba2MambaMixer",), (CONV, SSD)),
    Family("nemotron_h", ("NemotronHMamba2Mixer",), (CONV, SSD)),
    Family("mamba", ("MambaMixer",), (CONV, SELECTIVE_SCAN)),
    Family("falcon_mamba", ("FalconMambaMixer",), (CONV, SELECTIVE_SCAN)),
    Family("jamba", ("JambaMambaMixer",), (CONV, SELECTIVE_SCAN)),
    Family("zamba", ("ZambaMambaMixer",), (CONV, SELECTIVE_SCAN)),
    Family("lfm2", ("Lfm2ShortConv",), (CONV,)),
    Family("lfm2_moe", ("Lfm2MoeShortConv",), (CONV,)),
    Family("lfm3", ("Lfm3ShortConv",), (CONV,)),
    # Its RG-LRU resets wherever a position is 0; only the convolution in front of it does not.
    Family("recurrent_gemma", ("RecurrentGemmaRecurrentBlock",), (CONV,)),
    Family("inkling", ("InklingShortConvolution",), (CONV,), row_scaled="log_scaling_n_floor"),
    Family("inkling2", ("Inkling2ShortConvolution",), (CONV,), native=("Inkling2DynamicShortConvolution",)),
    Family(
        "inkling2_loop", ("Inkling2LoopShortConvolution",), (CONV,), native=("Inkling2LoopDynamicShortConvolution",)
    ),
)

_OPS = {(family.module, name): (family, family.ops) for family in FAMILIES for name in family.mixers}
_OPS |= {(family.module, name): (family, (SEQ_IDX,)) for family in FAMILIES for name in family.native}


@dataclass(frozen=True)
class Mixer:
    """A mixer of a built model: its name there, its family, and the ops that must use the boundaries."""

    name: str
    family: Family
    ops: tuple[str, ...]


def known_mixer(name: str, module: object) -> Mixer | None:
    """The mixer that `module` is, by its class or one of its bases; `None` if it is in no row of the table."""
    for cls in type(module).__mro__:
        row = _OPS.get((cls.__module__, cls.__name__))
        if row is not None:
            return Mixer(name, *row)
    return None
