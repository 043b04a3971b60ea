"""One warning per reason, through the logger ``patcher``."""

from __future__ import annotations

import logging
import threading

logger = logging.getLogger("patcher")

_said: set[str] = set()
_lock = threading.Lock()


def say_once(key: str, message: str, level: int = logging.WARNING) -> None:
    """Logs a message, unless one with this key was logged before in this process."""
    with _lock:
        if key in _said:
            return
        _said.add(key)
    logger.log(level, "%s", message)
