"""Wraps the places where mixers reach their kernels.

Transformers has reached kernels in three ways, and each is one kind of point here, found by what a mixer has and what
its code names:

- `GlobalPoint`: the mixer's code calls a global of its module;
- `AttributePoint`: the mixer holds the kernel, or `None`, as an instance attribute;
- `MethodPoint`: the mixer has a method for kernels beside one with the operations written out, and takes the second
  on a CPU or without kernels.

A convolution that a mixer calls in line, as a module, is not a point: the runtime hooks the module.

A wrapper without a current scope is the original call. With one it runs the op through its adapter and notes the use.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import wrapt
from torch import nn

from replacements.packing.adapters import KERNELS
from replacements.packing.boundaries import EXPLICIT
from replacements.packing.current import Scope, current
from replacements.packing.families import CONV, SEQ_IDX
from replacements.packing.masks import sees_documents
from replacements.packing.structure import is_row_convolution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from replacements.packing.families import Family, Mixer

#: Method pairs: with the kernels, and with the operations written out.
_KERNEL_METHOD = "cuda_kernels_forward"
_PLAIN_METHODS = ("torch_forward", "slow_forward")

_MASK_FUNCTION = "create_causal_mask"

_lock = threading.Lock()
_wrapped: dict[Point, tuple[Any, Any]] = {}
_MISSING = object()


@dataclass(frozen=True)
class Point:
    """One name on one holder (a module or a class) through which mixers reach kernels."""

    holder: Any
    name: str

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that are reached here."""
        return KERNELS[self.name].ops

    def wrapper(self, original: Any) -> Any:
        """What stands here once wrapped."""
        return with_boundaries(original, self.name)


class GlobalPoint(Point):
    """A module global that mixers call."""


class MaskPoint(Point):
    """A module global that builds the attention mask of a model which does not show it the positions."""

    ops = ()

    def wrapper(self, original: Any) -> Any:
        """The mask function, given the positions of the current documents."""
        return sees_documents(original)


class AttributePoint(Point):
    """An instance attribute of a mixer class; its wrapper is a descriptor of the class."""

    def wrapper(self, original: Any) -> Any:
        """A descriptor; `original` is `_MISSING`, the kernels are on the instances."""
        return KernelAttribute(self.name)


class MethodPoint(Point):
    """A method of a pair. With boundaries current either runs the kernel method over the boundary-aware ops."""

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops that the kernel method calls."""
        names = set(inspect.unwrap(getattr(self.holder, _KERNEL_METHOD)).__code__.co_names)
        return tuple(op for name in sorted(names & KERNELS.keys()) for op in KERNELS[name].ops)

    def wrapper(self, original: Any) -> Any:
        """The original method, unless boundaries are current."""
        packed = _over_ops(inspect.unwrap(getattr(self.holder, _KERNEL_METHOD)))

        @torch.compiler.disable
        @functools.wraps(original)
        def method(mixer: Any, *args: Any, **kwargs: Any) -> Any:
            if _scope_here() is None:
                return original(mixer, *args, **kwargs)
            return packed(_WithoutFusedKernel(mixer), *args, **kwargs)

        return method


class _WithoutFusedKernel(wrapt.ObjectProxy):
    """A mixer that says it is not training: kernel methods then take the separate kernels, which have boundaries."""

    training = False


class KernelAttribute:
    """Gives a mixer the boundary-aware op in place of its kernel while boundaries are current."""

    def __init__(self, name: str):
        self.name = name

    def __get__(self, mixer: Any, owner: type | None = None) -> Any:
        if mixer is None:
            return self
        kernel = vars(mixer).get(self.name, _MISSING)
        if kernel is _MISSING:
            raise AttributeError(f"{type(mixer).__name__!r} object has no attribute {self.name!r}")
        return kernel if _scope_here() is None else with_boundaries(kernel, self.name)

    def __set__(self, mixer: Any, kernel: Any) -> None:
        vars(mixer)[self.name] = kernel


def points_of(mixers: Mapping[nn.Module, Mixer]) -> list[Point]:
    """Every dispatch point of a model's mixers, and of the masks beside them, once each."""
    return list(
        dict.fromkeys(
            point
            for module, mixer in one_of_each(mixers).items()
            for point in [*_points(module), *_mask_points(mixer.family)]
        )
    )


def inline_convolutions(module: nn.Module, mixer: Mixer) -> list[nn.Module]:
    """The depthwise convolutions of a mixer that calls them itself and not through a kernel."""
    if CONV not in mixer.ops or any(CONV in point.ops for point in _points(module)):
        return []
    return [child for child in module.children() if type(child) is nn.Conv1d and is_row_convolution(child)]


def unreachable(mixers: Mapping[nn.Module, Mixer]) -> list[str]:
    """`Class.op` for each op of a mixer class that is called in none of the known ways."""
    missing = []
    for module, mixer in one_of_each(mixers).items():
        reached = {op for point in _points(module) for op in point.ops} | {SEQ_IDX}
        if inline_convolutions(module, mixer):
            reached.add(CONV)
        missing += [f"{type(module).__name__}.{op}" for op in mixer.ops if op not in reached]
    return sorted(missing)


def one_of_each(mixers: Mapping[nn.Module, Mixer]) -> dict[nn.Module, Mixer]:
    """One mixer of each class."""
    return dict({type(module): (module, mixer) for module, mixer in mixers.items()}.values())


def _points(mixer: nn.Module) -> list[Point]:
    cls = type(mixer)
    if hasattr(cls, _KERNEL_METHOD):
        pair = [name for name in (_KERNEL_METHOD, *_PLAIN_METHODS) if hasattr(cls, name)]
        return [MethodPoint(_definer(cls, name), name) for name in pair]
    held = [name for name in KERNELS if name in vars(mixer)]
    if held:
        return [AttributePoint(cls, name) for name in held]
    found: list[Point] = []
    for base in cls.__mro__:
        module = sys.modules.get(base.__module__)
        named = _names_in_code(base) & KERNELS.keys()
        found += [GlobalPoint(module, name) for name in sorted(named) if callable(vars(module).get(name))]
    return found


def _mask_points(family: Family) -> list[Point]:
    module = sys.modules[family.module]
    return [MaskPoint(module, _MASK_FUNCTION)] if family.blind_mask and hasattr(module, _MASK_FUNCTION) else []


def _definer(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))


def _names_in_code(cls: type) -> set[str]:
    """The global and attribute names that the methods of a class refer to."""
    methods = [member for member in vars(cls).values() if inspect.isfunction(member)]
    return {name for method in methods for layer in _layers(method) for name in layer.__code__.co_names}


def _layers(function: types.FunctionType) -> Iterator[types.FunctionType]:
    """A function and those that it closes over: not every decorator says what it wraps."""
    pending, seen = [inspect.unwrap(function), function], set()
    while pending:
        layer = pending.pop()
        if layer not in seen:
            seen.add(layer)
            yield layer
            pending += filter(inspect.isfunction, inspect.getclosurevars(layer).nonlocals.values())


def wrap(points: list[Point]) -> None:
    """Wraps the given points; one that is wrapped already stays as it is."""
    with _lock:
        for point in points:
            present = vars(point.holder).get(point.name, _MISSING)
            if point in _wrapped and _wrapped[point][1] is present:
                continue
            wrapper = point.wrapper(present)
            setattr(point.holder, point.name, wrapper)
            _wrapped[point] = (present, wrapper)


def unwrap_all() -> list[Point]:
    """Takes every wrapper back; returns the points that somebody has since set to something else, left alone."""
    kept = []
    with _lock:
        for point, (original, wrapper) in _wrapped.items():
            if vars(point.holder).get(point.name) is not wrapper:
                kept.append(point)
            elif original is _MISSING:
                delattr(point.holder, point.name)
            else:
                setattr(point.holder, point.name, original)
        _wrapped.clear()
    return kept


def _scope_here() -> Scope | None:
    """The current scope, where its boundaries are for this call: inside one of its own mixers.

    Another model of the same family may run inside the forward that the scope is of; its mixers are not the scope's.
    """
    scope = current()
    if scope is None or scope.segments is None:
        return None
    if scope.mixer is None:
        scope.strayed = True
        return None
    return scope


def _row_is_one_document() -> bool:
    """Whether one of our mixers is running, on rows that are single documents."""
    scope = current()
    return scope is not None and scope.mixer is not None and scope.segments is None


def with_boundaries(original: Callable[..., Any] | None, name: str) -> Callable[..., Any]:
    """The original kernel, unless boundaries are current: then the op, through the adapter of its name."""
    kernel = KERNELS[name]

    @torch.compiler.disable  # which documents a row holds is not a constant of a compiled graph
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = _scope_here()
        if scope is None:
            if _row_is_one_document():  # boundaries that say so would only be refused by a kernel that takes none
                kwargs = {key: value for key, value in kwargs.items() if key not in EXPLICIT}
            return original(*args, **kwargs)
        result = kernel.adapter(scope.segments, *args, **kwargs)
        if result is not None:  # a fused kernel may decline, and the mixer goes on to the separate ones
            for op in kernel.ops:
                scope.record(op)
        return result

    return functools.wraps(original)(call) if callable(original) else call


def _over_ops(method: types.FunctionType) -> types.FunctionType:
    """A method for kernels, with the boundary-aware ops under the kernels' names.

    The copy has globals of its own: mixers of this generation set those of the module anew whenever one is built.
    """
    ops = {name: with_boundaries(None, name) for name in KERNELS if name in method.__code__.co_names}
    namespace = {**method.__globals__, **ops}
    copied = types.FunctionType(method.__code__, namespace, method.__name__, method.__defaults__, method.__closure__)
    copied.__kwdefaults__ = method.__kwdefaults__
    return copied
