"""Ways to split the tokens of a row between devices, as accelerate is told of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

#: Sizes in accelerate's `ParallelismConfig`: ring attention (context), Ulysses and ALST (sequence).
CONTEXT, SEQUENCE = "cp_size", "sp_size"
_LAUNCHED = "ACCELERATE_USE_PARALLELISM_CONFIG"


def split_rows(args: Any) -> tuple[str, int] | None:
    """By which setting the rows of a trainer are split between devices, and among how many; `None` if they are whole.

    The trainer's accelerator does not exist yet when this is asked, so it is read where that will read it: the
    trainer's settings, an accelerator that the process has already, what `accelerate launch` set.
    """
    for config in _configs(args):
        for name in (CONTEXT, SEQUENCE):
            size = config.get(name)
            if isinstance(size, int) and size > 1:
                return name, size
        return None
    return None


def _configs(args: Any) -> Iterator[dict[str, Any]]:
    """What is configured, the first of them in force."""
    state = getattr(sys.modules.get("accelerate.state"), "AcceleratorState", None)
    shared = getattr(state, "_shared_state", {}).get("parallelism_config")
    for config in (getattr(args, "parallelism_config", None), shared):
        if config is not None:
            yield {name: getattr(config, name, None) for name in (CONTEXT, SEQUENCE)}
    if os.environ.get(_LAUNCHED, "").lower() in ("1", "true"):
        yield {name: int(os.environ.get(f"PARALLELISM_CONFIG_{name.upper()}") or 1) for name in (CONTEXT, SEQUENCE)}
