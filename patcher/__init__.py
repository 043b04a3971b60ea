"""Importing this package patches TRL's ``SFTTrainer`` so that packed batches are right on hybrid models.

What is imported already is patched at once, the rest when it is imported. ``PATCHER_DISABLE=1`` turns it off,
``PATCHER_ZOO=1`` adds unsloth_zoo's dataset preparation.
"""

from __future__ import annotations

from patcher import _session, _settings
from patcher._errors import PatchError
from patcher._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from patcher._status import Status

__all__ = ["PatchError", "__version__", "check", "install", "pack", "status", "uninstall", "verify"]

_LAZY = ("check", "pack", "verify")


def install(zoo: bool | None = None) -> None:
    """Patches what is imported already and waits for the rest. Calling it again takes nothing back.

    Args:
        zoo: whether unsloth_zoo's dataset preparation is patched, and takes the place of TRL's in its trainer, once
            somebody imports it; None does what ``PATCHER_ZOO`` says, which is no by default.

    Raises:
        PatchError: a required rewrite of an imported module cannot be made. The process is as it was.
        ValueError: ``PATCHER_DISABLE`` or ``PATCHER_ZOO`` has a value that means nothing.
    """
    if _disabled():
        return
    import replacements

    replacements.install({"zoo"} if (_settings.is_on("PATCHER_ZOO") if zoo is None else zoo) else ())


def uninstall() -> None:
    """Takes everything back: each upstream object is the one it was before, and no model has hooks of ours."""
    import replacements

    replacements.uninstall()


def status() -> Status:
    """What is patched, in which versions, by which anchors; ``str()`` to read, ``to_dict()`` for JSON."""
    from patcher import _status

    rewrites = tuple(_status.of(record) for record in _session.records())
    return _status.Status(__version__, _session.is_installed(), _disabled(), rewrites)


def _disabled() -> bool:
    return _settings.is_on("PATCHER_DISABLE")


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module("replacements.packing.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


install()
