"""Reads a built model: which modules carry state along the row, and which module holds the decoder layers.

Known mixers are found in the table of families. Others are recognised by their structure, so that a family nobody
has taught us is never taken for plain attention.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

from replacements.packing.families import family_of

if TYPE_CHECKING:
    from replacements.packing.families import Family

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
        mixers: Known mixers, each with its name in the model and its row of the table.
        unknown: Names of modules that carry state along the row and are in no row of the table.
    """

    backbone: nn.Module
    mixers: dict[nn.Module, tuple[str, Family]]
    unknown: dict[str, nn.Module]

    @classmethod
    def of(cls, model: nn.Module) -> Anatomy:
        """Reads `model`, which may be wrapped (PEFT, DDP)."""
        mixers, unknown = {}, {}
        for name, module in model.named_modules():
            family = family_of(module)
            if family is not None:
                mixers[module] = (name, family)
        inside = {id(part) for mixer in mixers for part in mixer.modules()}
        for name, module in model.named_modules():
            if id(module) not in inside and carries_state(module) and not _covered(name, unknown):
                unknown[name] = module
        return cls(find_backbone(model, [*mixers, *unknown.values()]), mixers, unknown)


def carries_state(module: nn.Module) -> bool:
    """Whether a module looks like it carries state from token to token.

    It does if it is an RNN, owns a decay, convolves causally along the row, or is called like a recurrence.
    """
    if isinstance(module, nn.RNNBase):
        return True
    if any(_STATE_PARAMETERS.match(name) for name, _ in module.named_parameters(recurse=False)):
        return True
    if any(_is_causal_conv(child) for child in module.children()):
        return True
    name = type(module).__name__
    return bool(_STATE_CLASSES.search(name)) and not _PART_CLASSES.search(name)


def find_backbone(model: nn.Module, layers: list[nn.Module]) -> nn.Module:
    """The innermost model that holds the decoder layers: the token embedding and all of the given parts are in it."""
    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    wanted = {id(part) for part in layers} | ({id(embedding)} if embedding is not None else set())
    found = model
    for module in model.modules():
        if _holds_layers(module) and wanted <= {id(part) for part in module.modules()}:
            found = module
    return found


def _holds_layers(module: nn.Module) -> bool:
    """Whether a module is a stack of layers with an embedding: `layers`, or `blocks`, `h` in some families."""
    stacks = (getattr(module, name, None) for name in ("layers", "blocks", "h"))
    return any(isinstance(stack, nn.ModuleList) for stack in stacks) and hasattr(module, "config")


def _is_causal_conv(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d) and module.groups == module.in_channels > 1 and module.kernel_size[0] > 1


def _covered(name: str, unknown: dict[str, nn.Module]) -> bool:
    return any(name.startswith(f"{outer}.") for outer in unknown)
