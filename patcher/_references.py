"""Where a function is held: its own place, names that other modules took, registries, and decorators' wrappers."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any

from patcher._errors import TargetMissing
from patcher._places import ABSENT, AttributePlace, CellPlace, ItemPlace, Place, Swap
from patcher._rewrite import Rewrite

_ITEM = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)\[(?P<quote>['\"])(?P<key>.*)(?P=quote)\]\Z")

Swaps = Callable[[FunctionType], list[Swap]]


def find(rewrite: Rewrite) -> tuple[FunctionType, Swaps, list[str]]:
    """The function of a rewrite, how to put another in its place, and where it is held out of reach.

    Returns:
        The innermost function, without decorators; a function from its replacement to the swaps that put it
        everywhere; names in other packages that keep the old object.

    Raises:
        TargetMissing: something in the qualified name is missing, inherited, or holds no function.
    """
    owner, name, value = _resolve(rewrite)
    places: list[Place] = [AttributePlace(owner, name)]
    outside: list[str] = []
    if isinstance(owner, ModuleType):
        inside, outside = _holders(rewrite, value)
        places += [place for place in inside if place not in places]
    for alias in dict.fromkeys(rewrite.aliases):
        place = _alias(alias)
        if place is not None and place.get() is value and place not in places:
            places.append(place)
    function, swaps = _dig(places, value, rewrite.target)
    return function, swaps, outside


def _resolve(rewrite: Rewrite) -> tuple[Any, str, Any]:
    owner: Any = sys.modules[rewrite.module]
    *outer, name = rewrite.qualname.split(".")
    for part in outer:
        owner = getattr(owner, part, ABSENT)
        if owner is ABSENT:
            raise TargetMissing(f"the loaded {rewrite.module} has no {part!r}")
    value = getattr(owner, "__dict__", {}).get(name, ABSENT)
    if value is not ABSENT:
        return owner, name, value
    inherited = next((base for base in getattr(owner, "__mro__", ())[1:] if name in vars(base)), None)
    if inherited is None:
        raise TargetMissing(f"{rewrite.qualname} does not exist in the loaded {rewrite.module}")
    raise TargetMissing(
        f"{owner.__qualname__} (module {owner.__module__}) does not define {name!r} itself, it inherits it from "
        f"{inherited.__module__}.{inherited.__qualname__}: either the class was replaced by a subclass, or upstream "
        "moved the function",
        remedy=f"Import patcher before what replaces it, or install a release of {rewrite.package} that it knows",
    )


def _holders(rewrite: Rewrite, value: Any) -> tuple[list[Place], list[str]]:
    """Names of loaded modules that hold a module-level function: in its own package, and elsewhere."""
    package = rewrite.module.partition(".")[0]
    inside: list[Place] = []
    outside: list[str] = []
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType):
            continue
        names = [name for name, held in list(vars(module).items()) if held is value]
        if module_name.partition(".")[0] == package:
            inside += [AttributePlace(module, name) for name in names]
        else:
            outside += [f"{module_name}:{name}" for name in names]
    return inside, outside


def _alias(alias: str) -> Place | None:
    """The place that an alias names, or None while its module is not loaded or has nothing there."""
    item = _ITEM.match(alias)
    module_name, _, path = (f"{item['module']}:{item['name']}" if item else alias).partition(":")
    owner: Any = sys.modules.get(module_name)
    *outer, last = path.split(".")
    for part in [*outer, last] if item else outer:
        owner = getattr(owner, part, None)
    if owner is None:
        return None
    if item:
        return ItemPlace(owner, item["key"], alias)
    return AttributePlace(owner, last)


def _dig(places: list[Place], value: Any, what: str) -> tuple[FunctionType, Swaps]:
    """Goes through decorators to the function that holds the body."""
    if isinstance(value, staticmethod | classmethod):
        return _through(places, value, value.__func__, what, type(value))
    if isinstance(value, property) and value.fget is not None:
        return _through(
            places, value, value.fget, what, lambda new: property(new, value.fset, value.fdel, value.__doc__)
        )
    if not isinstance(value, FunctionType):
        wrapped = getattr(value, "__wrapped__", None)
        parameters = getattr(value, "cache_parameters", None)
        if wrapped is not None and parameters is not None:
            return _through(places, value, wrapped, what, functools.lru_cache(**parameters()))
        raise TargetMissing(
            f"{what} is a {type(value).__module__}.{type(value).__qualname__}, not a function; another library may "
            "have put it there",
            remedy="Import patcher before that library",
        )
    inner = value.__dict__.get("__wrapped__", None)
    if inner is None:
        return value, lambda new: [Swap(place, value, new) for place in places]
    cells = [cell for cell in value.__closure__ or () if CellPlace(cell, "").get() is inner]
    if not cells:
        raise TargetMissing(
            f"{what} is wrapped by {value.__module__}.{value.__code__.co_name}, which does not hold the wrapped "
            "function in a closure, so it cannot be exchanged there",
            remedy="Import patcher before the library that wraps it",
        )
    held = [CellPlace(cell, f"wrapper of {what}") for cell in cells]
    return _dig([*held, AttributePlace(value, "__wrapped__")], inner, what)


def _through(
    places: list[Place], value: Any, inner: Any, what: str, rebuild: Callable[[FunctionType], Any]
) -> tuple[FunctionType, Swaps]:
    """Through an object that must be rebuilt around another function, unless a wrapper below takes the function."""
    if isinstance(inner, FunctionType) and "__wrapped__" not in inner.__dict__:

        def swaps(new: FunctionType) -> list[Swap]:
            outer = rebuild(new)
            return [Swap(place, value, outer) for place in places]

        return inner, swaps
    return _dig(places, inner, what)
