"""Calls back when a module has been imported. Imports nothing itself, and can be taken out again.

Unlike wrapt's, a hook stays until it is cancelled: when it fails, the import fails, and so does the next try; and
a reloaded module is reported again. Importing it costs nothing, where wrapt alone exceeds the budget.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

    Path = Sequence[str] | None

Hook = Callable[[ModuleType], None]

_hooks: dict[str, dict[str, Hook]] = {}  # by module, then by owner
_lock = threading.Lock()


def watch(name: str, hook: Hook, owner: str) -> None:
    """Has ``hook(module)`` called right after the module of that name was executed.

    What the hook raises comes out of the import statement, which then has failed.

    Args:
        name: name of the module.
        hook: takes the module. It takes the place of an earlier hook of the same owner, and of no other.
        owner: who asks, to cancel it by.
    """
    with _lock:
        _hooks[name] = {**_hooks.get(name, {}), owner: hook}  # a copy: others may be going through the old one
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)


def unwatch(name: str, owner: str) -> None:
    """Cancels an owner's hook for that module. After the last of all, the finder leaves ``sys.meta_path``."""
    with _lock:
        left = {other: hook for other, hook in _hooks.pop(name, {}).items() if other != owner}
        if left:
            _hooks[name] = left
        if not _hooks and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)


def watched() -> list[str]:
    """Names of the modules that have a hook."""
    return list(_hooks)


class _Finder:
    """Lets the other finders find a watched module, and puts a loader that reports in place of its loader."""

    def __init__(self):
        self._busy = threading.local()

    def find_spec(self, name: str, path: Path = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in _hooks:
            return None
        busy = self._busy.__dict__.setdefault("names", set())
        if name in busy:
            return None  # another library's finder asks on our behalf
        busy.add(name)
        try:
            return self._ask_others(name, path, target)
        finally:
            busy.discard(name)

    def _ask_others(self, name: str, path: Path, target: ModuleType | None) -> ModuleSpec | None:
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                else:
                    _say_unwatchable(name, spec)
                return spec
        return None


def _say_unwatchable(name: str, spec: ModuleSpec) -> None:
    from patcher._log import say_once

    loader = type(spec.loader).__name__
    advice = "Import it first, then call patcher.install()"
    say_once(
        f"unwatchable {name}", f"{name} is loaded by {loader}, which reports nothing, and is not patched. {advice}"
    )


class _Loader:
    """A module's own loader, which calls the hook after the module ran."""

    def __init__(self, loader: object):
        self._loader = loader

    def __getattr__(self, name: str) -> object:
        return getattr(self.__dict__["_loader"], name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # the module is to see its own loader, which answers for sources and resources
        if getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        for hook in _hooks.get(module.__name__, {}).values():
            # a module may put another object into sys.modules in its own place
            hook(sys.modules.get(module.__name__, module))


_finder = _Finder()
