"""Places that can hold an object: an attribute, an item, a closure cell."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from types import CellType, ModuleType
from typing import Any

ABSENT = type("Absent", (), {"__repr__": lambda self: "nothing"})()


@dataclass(frozen=True)
class AttributePlace:
    """An attribute of a module, class or function, looked up in its own dictionary."""

    owner: Any
    name: str

    def get(self) -> Any:
        """The object there now, unbound, or ``ABSENT``."""
        return vars(self.owner).get(self.name, ABSENT)

    def set(self, value: Any) -> None:
        """Puts an object there."""
        setattr(self.owner, self.name, value)

    def __str__(self) -> str:
        if isinstance(self.owner, ModuleType):
            return f"{self.owner.__name__}:{self.name}"
        return f"{getattr(self.owner, '__module__', '?')}:{getattr(self.owner, '__qualname__', '?')}.{self.name}"


@dataclass(frozen=True, eq=False)
class ItemPlace:
    """An item of a mapping."""

    mapping: MutableMapping
    key: Any
    label: str

    def get(self) -> Any:
        """The object there now, or ``ABSENT``."""
        return self.mapping.get(self.key, ABSENT)

    def set(self, value: Any) -> None:
        """Puts an object there."""
        self.mapping[self.key] = value

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True)
class CellPlace:
    """A closure cell of a decorator's wrapper."""

    cell: CellType
    label: str

    def get(self) -> Any:
        """The object there now, or ``ABSENT``."""
        try:
            return self.cell.cell_contents
        except ValueError:
            return ABSENT

    def set(self, value: Any) -> None:
        """Puts an object there."""
        self.cell.cell_contents = value

    def __str__(self) -> str:
        return self.label


Place = AttributePlace | ItemPlace | CellPlace


@dataclass(frozen=True)
class Swap:
    """One object put in place of another."""

    place: Place
    old: Any
    new: Any

    def do(self) -> None:
        """Puts the new object there."""
        self.place.set(self.new)

    def undo(self) -> bool:
        """Puts the old object back, unless something else stands there by now; says whether it did."""
        if self.place.get() is not self.new:
            return False
        self.place.set(self.old)
        return True

    @property
    def holds(self) -> bool:
        """Whether the new object is still there."""
        return self.place.get() is self.new
