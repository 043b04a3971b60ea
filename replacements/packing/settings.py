"""What the environment asks of the guard, read when a trainer is built."""

from __future__ import annotations

from patcher._settings import SettingError, is_on, read

__all__ = ["SettingError", "check", "hybrid_packing", "raise_when_unsafe"]


def check() -> None:
    """Reads them all, so that a wrong one is known before it is needed.

    Raises:
        SettingError: One has a value that means nothing.
    """
    raise_when_unsafe()
    hybrid_packing()


def raise_when_unsafe() -> bool:
    """`PATCHER_ON_UNSAFE`: `pad` (default) trains padded, `raise` stops with an error."""
    return read("PATCHER_ON_UNSAFE") == "raise"


def hybrid_packing() -> bool:
    """`PATCHER_HYBRID_PACKING`: `1` (default) packs hybrid models, `0` trains them padded."""
    return is_on("PATCHER_HYBRID_PACKING")
