"""How much memory is free where a model is to be put."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

#: What limits this process's memory and what it uses of it, in versions 2 and 1 of Linux control groups; and the key in
#: `memory.stat` of the file cache that the kernel gives up first.
_GROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


def device() -> torch.device:
    """Where a model that is named is run."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def free() -> float:
    """Bytes that are free on that device; file cache counts as free, and a container's limit as the end of memory."""
    if device().type == "cuda":
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        return torch.cuda.mem_get_info()[0] + unused
    return min(psutil.virtual_memory().available, *(_free_in_group(*group) for group in _GROUPS))


def _free_in_group(limit: str, used: str, cache: str) -> float:
    """What a container may still take; unbounded where there is no such limit."""
    try:
        most = int(Path(limit).read_text())
        taken = int(Path(used).read_text())
        stat = dict(line.split() for line in Path(used).with_name("memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # not Linux, not this version, or the word `max`
        return float("inf")
    return most - taken + int(stat.get(cache, 0))


def in_words(size: float) -> str:
    """A number of bytes for people."""
    return f"{size / 1e9:.1f} GB"
