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

TYPE_CHECKING = False  # typing would be a sixth of the time that `import patcher` takes
if TYPE_CHECKING:
    from typing import Any

    from patcher.rewriting import Rewrite

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
    """Stops waiting for Unsloth and for classes that it may still make; what is rewritten the engine takes back."""
    from patcher import _importhook

    for module in (_ZOO, _UNSLOTH):
        _importhook.unwatch(module, _OWNER)
    base = _listening.pop() if _listening else None
    if base is not None and isinstance(vars(base).get("__init_subclass__"), _OnSubclass):
        del base.__init_subclass__


def _step_aside(module: ModuleType | None = None) -> None:
    """Puts back what Unsloth is about to read; the ledger then says that it is left alone."""
    if _UNSLOTH in sys.modules:
        from patcher import _engine

        _engine.step_aside(_UNSLOTH)


def _join_bound(module: ModuleType | None = None) -> None:
    """Rewrites the class that `SFTTrainer` names now, and those that Unsloth makes later."""
    bound = importlib.import_module(_TRAINER).SFTTrainer
    _listen(bound)
    _join(bound)


def _join(bound: type) -> None:
    import logging

    from patcher import _engine, _log

    place = _place(bound)
    if place is not None and any(record.active for record in _engine.apply([_rewrite_of(place)])):
        _log.say_once("shared trainer", f"Unsloth is loaded. {_SHARES}", logging.INFO)


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


def _rewrite_of(place: str) -> Rewrite:
    from replacements.sft_trainer_init import REWRITE

    return dataclasses.replace(
        REWRITE,
        name=_NAME + place.rpartition(":")[2],
        target=f"{place}.__init__",
        calls={**REWRITE.calls, **_CALLS},
        required=False,
        unless=(),
        note=_SHARES,
        shows_upstream=True,  # whoever asks for its text is Unsloth, to copy it
        lost="packed documents of hybrid models are not kept apart in Unsloth's trainer; train with packing=False",
    )


class _OnSubclass(classmethod):
    """The `__init_subclass__` that tells of new trainers; a type of its own, to know it again."""


_listening: list[type] = []


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
