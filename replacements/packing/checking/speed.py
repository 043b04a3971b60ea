"""Which backend each op would use here, and what to install for a faster one."""

from __future__ import annotations

from collections.abc import Iterable

from replacements.kernels import backends
from replacements.packing.checking.report import OpBackend

#: Import names to names for pip, those that need no compiler first.
_PACKAGES = {"fla": "flash-linear-attention", "mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d"}


def backends_of(ops: Iterable[str], device: str) -> tuple[list[OpBackend], list[str]]:
    """What runs each op on a device, and the packages that would run it faster."""
    ops = list(ops)
    states = [state for state in backends.states(device) if state.op in ops] if ops else []
    found, install = [], []
    for op in ops:
        mine = [state for state in states if state.op == op]
        used = next((state for state in mine if state.state == "in use"), None)
        if used is not None:
            found.append(OpBackend(op, used.name, used.detail))
            continue
        failed = "; ".join(f"{state.name} {state}" for state in mine if state.state == "failed")
        found.append(OpBackend(op, "torch", failed or _why_torch(device)))
        if all(state.state in ("not installed", "failed") for state in mine):
            install += _missing([state.name for state in mine if state.state == "not installed"], install)
    return found, install


def _why_torch(device: str) -> str:
    return "on a CPU" if device == "cpu" else "no accelerated kernel is installed"


def _missing(names: list[str], chosen: list[str]) -> list[str]:
    """The package to install for an op, unless one that is chosen already has it."""
    offered = {name.partition(":")[0] for name in names}
    packages = [package for module, package in _PACKAGES.items() if module in offered]
    return [] if set(packages) & set(chosen) else packages[:1]
