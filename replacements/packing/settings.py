"""What the environment asks of the guard, read when a trainer is built."""

from __future__ import annotations

from patcher._settings import SettingError, is_on, read

__all__ = ["SettingError", "hybrid_packing", "raise_when_unsafe"]


def raise_when_unsafe() -> bool:
    """`PATCHER_ON_UNSAFE`: `pad` (default) trains padded, `raise` stops with an error."""
    return read("PATCHER_ON_UNSAFE") == "raise"


def hybrid_packing() -> bool:
    """`PATCHER_HYBRID_PACKING`: `1` (default) packs hybrid models, `0` trains them padded."""
    return is_on("PATCHER_HYBRID_PACKING")
