"""Looks at the environment and draws no conclusions."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import patcher
from patcher._settings import VARIABLES
from patcher.cli import upstream
from replacements.packing.texts import one_line

DISTRIBUTION = "trl-patcher"

SHOWN = ("torch", "transformers", "trl", "accelerate", "datasets", "peft")

KERNELS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d", "mamba_ssm": "mamba-ssm"}
"""Import name and distribution of the packages that hold accelerated kernels."""

FOREIGN = ("unsloth", "unsloth_zoo", "liger_kernel")
"""Packages that replace parts of TRL or of the models."""


@dataclass(frozen=True)
class Library:
    """A package.

    Attributes:
        name: its import name.
        distribution: its name for pip.
        version: the installed version; ``None`` if it is not installed.
        wanted: the versions that trl-patcher asks for, as in ``>=0.22``; empty for any.
        error: why it cannot be imported; ``None`` if it can, or was not tried.
    """

    name: str
    distribution: str
    version: str | None
    wanted: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Examination:
    """Everything the doctor looked at.

    Attributes:
        python: version and implementation.
        devices: names of the accelerators torch sees; empty on a CPU.
        libraries: what training needs.
        kernels: what speeds it up.
        foreign: installed packages that patch the same things.
        status: ``patcher.status()`` after importing what is patched.
        import_errors: why a module that is to be patched cannot be imported.
        settings: the patcher's environment variables that are set.
        backends: self-tests of the kernel backends, name to outcome; ``None`` without torch.
    """

    python: str
    devices: list[str]
    libraries: list[Library]
    kernels: list[Library]
    foreign: list[Library]
    status: Any
    import_errors: dict[str, str]
    settings: dict[str, str]
    backends: dict[str, str] | None = None


def examine() -> Examination:
    """Look at everything."""
    import_errors = upstream.load()
    wanted = _requirements()
    return Examination(
        python=f"{platform.python_version()} ({sys.implementation.name}, {platform.system()} {platform.machine()})",
        devices=_devices(),
        libraries=[_library(name, name, wanted) for name in SHOWN],
        kernels=[_importable(_library(name, distribution, wanted)) for name, distribution in KERNELS.items()],
        foreign=[found for name in FOREIGN if (found := _library(name, name, wanted)).version],
        status=patcher.status(),
        import_errors=import_errors,
        settings={name: os.environ[name] for name in VARIABLES if name in os.environ},
        backends=_backends(),
    )


def _requirements() -> dict[str, str]:
    """What this distribution asks for, without extras: name to specifier."""
    from packaging.requirements import Requirement

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from a checkout that is not installed
        return {}
    parsed = map(Requirement, lines)
    return {found.name: str(found.specifier) for found in parsed if "extra" not in str(found.marker or "")}


def _library(name: str, distribution: str, wanted: dict[str, str]) -> Library:
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        # A package put on the path without its metadata is still there.
        version = "unknown" if importlib.util.find_spec(name) is not None else None
    return Library(name, distribution, version, wanted.get(distribution, ""))


def _importable(library: Library) -> Library:
    if library.version is None:
        return library
    try:
        importlib.import_module(library.name)
    except Exception as error:  # kernels fail in their own ways: missing drivers, symbols, compilers
        return Library(library.name, library.distribution, library.version, library.wanted, one_line(error))
    return library


def _devices() -> list[str]:
    try:
        import torch
    except Exception:  # shown as an import error of the library already
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _backends() -> dict[str, str] | None:
    try:
        from replacements.kernels.backends import self_test
    except ImportError:  # no torch to test with
        return None
    return self_test()
