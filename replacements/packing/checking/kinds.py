"""Finds the kinds of layer that carry something from one document of a row into the next, and how much.

Two rows differ in their first document alone. The row runs once as it is, and what enters and leaves each part of each
layer is kept. Then the other row runs, and every part is given, for the second document, what entered it before; what
it makes of that is compared, and replaced by what left it before. What differs has therefore come from the first
document through this very part. What reaches a part differently has done so in the module around it.

The same, with the rows differing in the second document's beginning and kept equal behind it, tells which parts look
at other tokens at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from replacements.packing.checking import rows
from replacements.packing.checking.depth import decoder_layers
from replacements.packing.measuring import log_probs, packed_row
from replacements.packing.structure import Anatomy

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

#: Relative to the size of an output, so much may move: rows of one shape run the same kernels.
_ISOLATED = 1e-4
#: The name under which what happens before the first layer is listed.
EMBEDDING = "token embedding"


@dataclass(frozen=True)
class Moved:
    """How far each part of a model moved, relative to the size of its output; 0 if it stayed.

    Attributes:
        leak: By another first document, by the class of the part: the largest over its layers.
        mixes: The classes whose output at a token depends on earlier tokens.
    """

    leak: dict[str, float]
    mixes: frozenset[str]

    def isolated(self, kind: str) -> bool:
        """Whether the parts of this class keep documents apart."""
        return self.leak.get(kind, 0.0) <= _ISOLATED


def parts_of(model: nn.Module) -> list[nn.Module]:
    """The parts that are watched: decoder layers, their direct parts, mixers, and what lies beside those."""
    anatomy = Anatomy.of(model)
    stateful = [*anatomy.mixers, *anatomy.unknown.values()]
    around = {
        module for module in anatomy.backbone.modules() if any(part in set(module.modules()) for part in stateful)
    }
    layers = decoder_layers(model)
    direct = [child for layer in layers for child in layer.children()]
    beside = [child for outer in direct if outer in around and outer not in stateful for child in outer.children()]
    return list(dict.fromkeys([*layers, *direct, *beside, *stateful]))


def moved(model: nn.Module, *, seq_idx: bool) -> Moved:
    """Runs the rows through a model in eval mode without gradients.

    Args:
        model: With the runtime attached if `seq_idx`.
        seq_idx: Whether the batch says where documents start, or restarting positions alone do.
    """
    sample = rows.Rows.of(model)
    recorder = _Recorder(model, parts_of(model))

    def run(documents: rows.Documents) -> None:
        log_probs(model, packed_row(documents, seq_idx=seq_idx))

    with recorder.recording():
        run(sample.row)
    with recorder.comparing(rows.FIRST):
        run(sample.neighbour)
    leak = dict(recorder.moved)
    with recorder.comparing(rows.FIRST + rows.BEGINNING):
        run(sample.inside)
    return Moved(leak, frozenset(kind for kind, value in recorder.moved.items() if value > _ISOLATED))


class _Recorder:
    """Keeps what enters and leaves each part, and compares a later run with it.

    Attributes:
        moved: What the last comparison found: class of a part to the largest movement, relative to the size of what
            moved.
    """

    def __init__(self, model: nn.Module, parts: Iterable[nn.Module]):
        self.moved: dict[str, float] = {}
        self._parts = list(parts)
        self._around = _classes_around(model, self._parts)
        self._entered: dict[nn.Module, list[list[torch.Tensor]]] = {}
        self._left: dict[nn.Module, list[list[torch.Tensor]]] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keeps the tensors of every call."""

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._entered.setdefault(module, []).append(_sequences((args, kwargs)))

        def after(module: nn.Module, args: Any, output: Any) -> None:
            self._left.setdefault(module, []).append(_sequences(output))

        with self._hooked(before, after):
            yield

    @contextmanager
    def comparing(self, start: int) -> Iterator[None]:
        """Compares from token `start` on, and keeps what differs from reaching other parts."""
        self.moved.clear()
        entering = {part: iter(calls) for part, calls in self._entered.items()}
        leaving = {part: iter(calls) for part, calls in self._left.items()}

        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            kept = next(entering[module])
            self._note(self._around[module], _sequences((args, kwargs)), kept, start)
            return _spliced((args, kwargs), iter(kept), start)

        def after(module: nn.Module, args: Any, output: Any) -> Any:
            kept = next(leaving[module])
            self._note(type(module).__name__, _sequences(output), kept, start)
            return _spliced(output, iter(kept), start)

        with self._hooked(before, after):
            yield

    def _note(self, kind: str, got: list[torch.Tensor], kept: list[torch.Tensor], start: int) -> None:
        self.moved.setdefault(kind, 0.0)
        for one, other in zip(got, kept, strict=True):
            wanted = other[:, start:].float()
            change = float((one[:, start:] - wanted).abs().max() / wanted.square().mean().sqrt().clamp(min=1e-12))
            self.moved[kind] = max(self.moved[kind], change if math.isfinite(change) else math.inf)

    @contextmanager
    def _hooked(self, before: Callable[..., Any], after: Callable[..., Any]) -> Iterator[None]:
        handles: list[RemovableHandle] = []
        for part in self._parts:
            handles.append(part.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(part.register_forward_hook(after))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _classes_around(model: nn.Module, parts: list[nn.Module]) -> dict[nn.Module, str]:
    """For each part the class of the innermost part around it; what is in none follows the embedding."""
    names = {module: name for name, module in model.named_modules()}
    by_name = {names[part]: part for part in parts}
    found = {}
    for part in parts:
        pieces = names[part].split(".")
        outer = (".".join(pieces[:n]) for n in range(len(pieces) - 1, 0, -1))
        found[part] = next((type(by_name[name]).__name__ for name in outer if name in by_name), EMBEDDING)
    return found


def _sequences(value: Any) -> list[torch.Tensor]:
    """Every tensor with a vector for each token of the row, in order."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()] if _is_sequence(value) else []
    if isinstance(value, dict):
        return [found for one in value.values() for found in _sequences(one)]
    if isinstance(value, (tuple, list)):
        return [found for one in value for found in _sequences(one)]
    return []


def _spliced(value: Any, kept: Iterator[torch.Tensor], start: int) -> Any:
    """The same structure, its tensors from token `start` on as they were kept."""
    if isinstance(value, torch.Tensor):
        return torch.cat([value[:, :start], next(kept)[:, start:]], dim=1) if _is_sequence(value) else value
    if type(value) is dict:
        return {name: _spliced(one, kept, start) for name, one in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_spliced(one, kept, start) for one in value)
    for _ in _sequences(value):  # what is structured otherwise stays as it is
        next(kept)
    return value


def _is_sequence(value: torch.Tensor) -> bool:
    shaped = value.ndim >= 3 and value.shape[:2] == (1, rows.FIRST + rows.SECOND)
    return shaped and value.is_floating_point() and value.numel() > 0
