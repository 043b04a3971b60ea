"""Reads a built model: which modules carry state along the row, and which module holds the decoder layers.

Known mixers are found in the table of families. Others are recognised by their structure, so that a family nobody
has taught us is never taken for plain attention.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from replacements.packing.families import known_mixer

if TYPE_CHECKING:
    from replacements.packing.families import Mixer

#: Parameters that only recurrences have: decay rates, step biases, time mixing.
_STATE_PARAMETERS = re.compile(r"^(A_log|dt_bias|time_decay|time_first|time_mix\w*|recurrent_param|slope_rate)$")
#: Class names of recurrences that own no such parameter.
_STATE_CLASSES = re.compile(
    r"mamba|ssm|ssd|deltanet|deltaattention|linearattention|lightningattention|rwkv|retention|recurrent|rglru"
    r"|[sm]lstm|shortconv|hyena|griffin|longconv",
    re.IGNORECASE,
)
#: Parts of a mixer that are not mixers: what normalises, caches or configures.
_PART_CLASSES = re.compile(r"norm|cache|config|embedding|rotary|decoderlayer|model|block$|forcausallm", re.IGNORECASE)


@dataclass(frozen=True)
class Anatomy:
    """What the guard and the runtime need to know of a model.

    Attributes:
        backbone: The innermost module that holds all decoder layers.
        mixers: The mixers that are in the table of families.
        unknown: Modules in the backbone that carry state along the row and are in no row of the table, by name.
    """

    backbone: nn.Module
    mixers: dict[nn.Module, Mixer]
    unknown: dict[str, nn.Module]

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        """Reads `model`, which may be wrapped (PEFT, DDP)."""
        named = {module: known_mixer(name, module) for name, module in model.named_modules()}
        mixers = {module: mixer for module, mixer in named.items() if mixer is not None}
        backbone = find_backbone(model, list(mixers))
        return cls(backbone, mixers, _unknown(backbone, mixers))


def _unknown(backbone: nn.Module, mixers: dict[nn.Module, Mixer]) -> dict[str, nn.Module]:
    inside = {part for mixer in mixers for part in mixer.modules()}
    prefix = re.sub(r"(Text)?(Model|For\w+)$", "", type(backbone).__name__)
    found: dict[str, nn.Module] = {}
    for name, module in backbone.named_modules():
        covered = module in inside or any(name.startswith(f"{outer}.") for outer in found)
        if name and not covered and carries_state(module, prefix):
            found[name] = module
    if not found and not mixers and (getattr(backbone, "_is_stateful", False) or _STATE_CLASSES.search(prefix)):
        found[type(backbone).__name__] = backbone
    return found


def carries_state(module: nn.Module, prefix: str = "") -> bool:
    """Whether a module looks like it carries state from token to token.

    It does if it is an RNN, owns a decay, convolves along the row, or is called like a recurrence.

    Args:
        module: Part of a model.
        prefix: What the class names of the model begin with: `KimiLinear` says nothing of `KimiLinearAttention`.
    """
    if isinstance(module, nn.RNNBase):
        return True
    if any(_STATE_PARAMETERS.match(name) for name, _ in module.named_parameters(recurse=False)):
        return True
    if any(is_row_convolution(child) for child in module.children()):
        return True
    name = type(module).__name__.removeprefix(prefix)
    return bool(_STATE_CLASSES.search(name)) and not _PART_CLASSES.search(name)


def find_backbone(model: nn.Module, mixers: list[nn.Module]) -> nn.Module:
    """The innermost model that holds the decoder layers: the token embedding and all mixers are in it."""
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    wanted = {*mixers, embedding} - {None}
    found = model
    for module in model.modules():
        if _holds_layers(module) and wanted <= set(module.modules()):
            found = module
    return found


def _holds_layers(module: nn.Module) -> bool:
    """Whether a module is a stack of layers: `layers`, or `blocks`, `h` in some families."""
    stacks = (getattr(module, name, None) for name in ("layers", "blocks", "h"))
    return any(isinstance(stack, nn.ModuleList) for stack in stacks) and hasattr(module, "config")


def is_row_convolution(module: nn.Module) -> bool:
    """Whether a module is a grouped convolution along the row, as the short convolutions of mixers are."""
    return isinstance(module, nn.Conv1d) and module.groups > 1 and module.kernel_size[0] > 1
