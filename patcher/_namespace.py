"""What injected text calls: ``__patcher__.name(...)`` reaches an ordinary function, imported at first use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

CELL = "__patcher__"


class Namespace:
    """The value of the reserved closure cell of a rewritten function."""

    def __init__(self, rewrite: str, calls: Mapping[str, str]):
        self.__dict__["__rewrite__"] = rewrite
        self.__dict__["__calls__"] = dict(calls)

    def __getattr__(self, name: str) -> Any:
        calls = self.__dict__.get("__calls__", {})
        if name not in calls:
            raise AttributeError(
                f"rewrite {self.__dict__.get('__rewrite__')!r} gives its text no {name!r}: {sorted(calls)}"
            )
        module, _, attribute = calls[name].partition(":")
        value: Any = importlib.import_module(module)
        for part in attribute.split("."):
            value = getattr(value, part)
        self.__dict__[name] = value  # found without this method from now on
        return value

    def __reduce__(self):
        return Namespace, (self.__dict__["__rewrite__"], self.__dict__["__calls__"])

    def __repr__(self) -> str:
        return f"<patcher calls of {self.__dict__['__rewrite__']!r}: {sorted(self.__dict__['__calls__'])}>"
