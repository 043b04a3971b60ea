"""Thins the layers of a config to the first few, among which is one of every kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from replacements.packing.structure import Anatomy

_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks")
#: Lists of layer numbers.
_NUMBERS = re.compile(r"(indices|idxs|layer_ids)$")

Kind = tuple[Any, ...]


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The layers in order: the longest of the outermost lists of modules in the backbone; empty if there is none."""
    level = [Anatomy.of(model).backbone]
    while level:
        children = [child for module in level for child in module.children()]
        stacks = [child for child in children if isinstance(child, nn.ModuleList)]
        if stacks:
            return list(max(stacks, key=len))
        level = children
    return []


def lists_of_layers(text: Mapping[str, Any], depth: int) -> list[str]:
    """The fields of a config that say something of each layer."""
    return [name for name, value in text.items() if isinstance(value, list) and len(value) == depth]


def kinds(layers: Sequence[nn.Module], text: Mapping[str, Any], lists: Sequence[str]) -> list[Kind]:
    """What kind each layer is: the classes it is made of, and what the lists of the config say of it."""
    return [
        (frozenset(type(part).__name__ for part in layer.modules()), *(repr(text[name][i]) for name in lists))
        for i, layer in enumerate(layers)
    ]


def enough(of_each: Sequence[Kind]) -> Iterator[int]:
    """Numbers of leading layers that are worth a try: one of every kind, then two, at last all.

    Some models need a second layer of a kind, which shares the weights of the first.
    """
    total = Counter(of_each)
    tried = set()
    for copies in (1, 2):
        seen: Counter[Kind] = Counter()
        keep = 0
        for i, kind in enumerate(of_each):
            seen[kind] += 1
            if seen[kind] <= min(copies, total[kind]):
                keep = i + 1
        tried.add(keep)
    yield from sorted(tried | {len(of_each)})


def thin(text: Mapping[str, Any], depth: int, keep: int) -> dict[str, Any]:
    """The config of a decoder with its first `keep` layers of `depth`."""
    thinned = {}
    for name, value in text.items():
        if name in _DEPTHS and value == depth:
            thinned[name] = keep
        elif isinstance(value, list) and len(value) == depth:
            thinned[name] = value[:keep]
        elif isinstance(value, list) and _NUMBERS.search(name):
            thinned[name] = [number for number in value if not isinstance(number, int) or number < keep]
        else:
            thinned[name] = value
    return thinned
