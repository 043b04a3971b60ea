"""The environment variables, read when a trainer is built."""

from __future__ import annotations

import os


class SettingError(ValueError):
    """An environment variable with a value that means nothing."""


def raise_when_unsafe() -> bool:
    """`PATCHER_ON_UNSAFE`: `pad` (default) trains padded, `raise` stops with an error."""
    return _one_of("PATCHER_ON_UNSAFE", {"pad": False, "raise": True}, "pad")


def hybrid_packing() -> bool:
    """`PATCHER_HYBRID_PACKING`: `1` (default) packs hybrid models, `0` trains them padded."""
    return _one_of("PATCHER_HYBRID_PACKING", {"0": False, "1": True}, "1")


def _one_of(name: str, values: dict[str, bool], default: str) -> bool:
    value = os.environ.get(name, "").strip().lower() or default
    if value not in values:
        raise SettingError(f"{name}={value!r} is not a value it can take. Set it to one of: {', '.join(values)}.")
    return values[value]
