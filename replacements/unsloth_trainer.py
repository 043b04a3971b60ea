"""The rewrite of the trainer under Unsloth, which builds one of its own from the text of TRL's or wraps TRL's.

Unsloth reads the text of TRL's functions while it is imported. What is rewritten there by then is put back first, so
that it reads what TRL published; afterwards the class that trainers are built from gets the edits of `SFTTrainer`.
Nothing of Unsloth's own is touched.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from types import ModuleType
from typing import Any

_UNSLOTH = "unsloth"
_ZOO = "unsloth_zoo"  # Unsloth imports it before it reads anything
_TRAINER = "trl.trainer.sft_trainer"
_GENERATED = "UnslothSFTTrainer"
_OWNER = "unsloth-trainer"
_NAME = "sft-trainer-in-"  # and the class
_SHARES = (
    "Unsloth owns this trainer: it prepares the data and decides first whether to pack. Where a model has recurrent "
    "or convolutional layers patcher gives them the boundaries, and Unsloth's own way to do so stands by."
)
_CALLS = {
    "choose": "replacements.packing.unsloth:choose",
    "prepare": "replacements.packing.unsloth:prepare",
}


def accompany() -> None:
    """Joins Unsloth's trainer, at once if Unsloth is imported, else when it is; imports nothing for anybody."""
    from patcher import _importhook

    _importhook.watch(_ZOO, _step_aside, _OWNER)
    _importhook.watch(_UNSLOTH, _join_bound, _OWNER)
    module = sys.modules.get(_UNSLOTH)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _join_bound()


def leave() -> None:
    """Stops waiting for Unsloth and its classes, and makes ready what the engine is to take back.

    Where Unsloth has wrapped a rewritten function, it is in the wrapper that the original is put back.
    """
    from patcher import _importhook, _ledger, _references
    from patcher._places import Swap
    from patcher.rewriting import PatchError

    for module in (_ZOO, _UNSLOTH):
        _importhook.unwatch(module, _OWNER)
    for record in _ledger.records():
        if not record.rewrite.name.startswith(_NAME):
            continue
        record.reason = ""
        if record.seen_state == _ledger.COVERED:
            try:
                function, swaps, _ = _references.find(record.rewrite)
            except PatchError:
                continue  # out of reach; the engine says so
            record.swaps = [Swap(swap.place, record.original, function) for swap in swaps(function)]
    base = _listening.pop() if _listening else None
    if base is not None and isinstance(vars(base).get("__init_subclass__"), _OnSubclass):
        del base.__init_subclass__


def _step_aside(module: ModuleType | None = None) -> None:
    """Puts back what Unsloth is about to read; the ledger then says that it is left alone."""
    from patcher import _engine, _ledger

    if _UNSLOTH not in sys.modules:
        return
    mine = [r.rewrite for r in _ledger.records() if r.active and _UNSLOTH in r.rewrite.unless]
    _engine.revert(rewrite.name for rewrite in mine)
    _engine.apply(mine)


def _join_bound(module: ModuleType | None = None) -> None:
    """Rewrites the class that `SFTTrainer` names now, and those that Unsloth makes later."""
    bound = importlib.import_module(_TRAINER).SFTTrainer
    _listen(bound)
    _join(bound)


def _join(bound: type) -> None:
    from patcher import _engine, _ledger, _shown, _source
    from patcher._log import logger

    place = _place(bound)
    if place is None:
        return
    rewrite = _rewrite_of(place)
    before = _ledger.get(rewrite.name)
    _engine.apply([rewrite])
    record = _ledger.get(rewrite.name)
    if record is None or record is before or not record.active or record.original is None:
        return
    record.reason = _SHARES
    # Whoever asks for the text of this function is Unsloth, to copy it: show it what TRL published.
    _shown.register(_shown.filename(rewrite.target), _source.of(record.original, rewrite.target).text)
    if not _said:
        _said.append(place)
        logger.info("Unsloth is loaded. %s", _SHARES)


def _place(bound: type) -> str | None:
    """`module:Class` that holds TRL's `__init__` among the classes of a trainer, as its module names it."""
    holder = None
    for cls in bound.__mro__:
        if cls.__module__ not in (bound.__module__, _TRAINER):
            break
        holder = cls if "__init__" in vars(cls) else holder
    module = sys.modules.get(bound.__module__)
    names = [name for name, value in vars(module).items() if value is holder] if module and holder else []
    return f"{bound.__module__}:{names[0]}" if names else None


def _rewrite_of(place: str) -> Any:
    from replacements.sft_trainer_init import REWRITE

    return dataclasses.replace(
        REWRITE,
        name=_NAME + place.rpartition(":")[2],
        target=f"{place}.__init__",
        calls={**REWRITE.calls, **_CALLS},
        required=False,
        unless=(),
        lost="packed documents of hybrid models are not kept apart in Unsloth's trainer; train with packing=False",
    )


class _OnSubclass(classmethod):
    """The `__init_subclass__` that tells of new trainers; a type of its own, to know it again."""


_listening: list[type] = []
_said: list[str] = []


def _listen(bound: type) -> None:
    """Has new trainer classes reported: Unsloth may make its own after it was imported, and by no import."""
    base = next((cls for cls in bound.__mro__ if cls.__module__ == "transformers.trainer"), None)
    if _listening or base is None or "__init_subclass__" in vars(base):
        return

    def on_subclass(cls: type, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        if cls.__name__ == _GENERATED:
            _join(cls)

    base.__init_subclass__ = _OnSubclass(on_subclass)  # type: ignore[assignment]
    _listening.append(base)
