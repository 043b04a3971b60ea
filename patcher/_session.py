"""What is installed in this process: rewrites in place, and rewrites that wait for their module."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType

from patcher import _importhook, _ledger
from patcher._errors import PatchError
from patcher._ledger import Record
from patcher._rewrite import Rewrite

_OWNER = "session"
_installed: dict[str, Rewrite] = {}


def install(rewrites: Iterable[Rewrite]) -> None:
    """Patches what is imported already and waits for the rest.

    Raises:
        PatchError: a required rewrite of an imported module cannot be made. The process is as it was.
    """
    rewrites = list(rewrites)
    modules = dict.fromkeys(rewrite.module for rewrite in rewrites)
    with _ledger.lock:
        new = [rewrite.name for rewrite in rewrites if rewrite.name not in _installed]
        for rewrite in rewrites:
            _installed[rewrite.name] = rewrite
        for module in modules:
            _importhook.watch(module, _on_import, _OWNER)  # before the look at sys.modules, so that none slips between
    try:
        loaded = {module for module in modules if _is_loaded(module)}
        if loaded:
            from patcher import _engine

            _engine.apply(rewrite for rewrite in rewrites if rewrite.module in loaded)
    except BaseException:
        _forget(new)
        raise


def uninstall() -> None:
    """Takes back every rewrite and stops waiting."""
    with _ledger.lock:
        _forget(list(_installed))
        if any(record.active for record in _ledger.records()):
            from patcher import _engine

            _engine.revert()


def is_installed() -> bool:
    """Whether anything is in place or waiting."""
    return bool(_installed)


def records() -> list[Record]:
    """What became of each rewrite, those that wait included."""
    known = {record.rewrite.name: record for record in _ledger.records()}
    for name, rewrite in list(_installed.items()):
        if name not in known or (known[name].state == _ledger.REVERTED and rewrite.module not in sys.modules):
            known[name] = Record(rewrite, _ledger.WAITING)
    return list(known.values())


def _forget(names: list[str]) -> None:
    with _ledger.lock:
        forgotten = [_installed.pop(name) for name in names if name in _installed]
        needed = {rewrite.module for rewrite in _installed.values()}
        for module in {rewrite.module for rewrite in forgotten} - needed:
            _importhook.unwatch(module, _OWNER)


def _on_import(module: ModuleType) -> None:
    waiting = [rewrite for rewrite in list(_installed.values()) if rewrite.module == module.__name__]
    if waiting:
        # not under the lock: another thread may hold the import lock of this package and wait for ours
        from patcher import _engine

        _engine.apply(waiting)


def _is_loaded(name: str) -> bool:
    """Whether the module is imported; waits for one that another thread is importing."""
    module = sys.modules.get(name)
    if module is None:
        return False
    if _is_initializing(module):
        importlib.import_module(name)  # returns when the other thread is done
    if _is_initializing(module):
        raise PatchError(f"{name} is being imported by this very thread; import patcher before it or after it")
    return name in sys.modules


def _is_initializing(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
