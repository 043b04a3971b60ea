"""Layers: one folder per (package, version), shared by all lanes and put before the base environment's packages.

A lane costs the folders it does not share, a few megabytes, and not an environment with its own torch.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.utils import canonicalize_name

from tools import _wheels
from tools.matrix_lanes import COMPANIONS, Lane


@functools.cache
def _tag(python: str) -> str:
    """Names the interpreter and platform, since some layers hold compiled code."""
    code = "import sys, sysconfig; print(sys.implementation.cache_tag, sysconfig.get_platform(), sep='-')"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def layer(package: str, release: str, cache: Path, python: str) -> Path:
    """Returns the folder of one package release, installing it there without dependencies if it is new.

    Raises:
        WheelError: pip could not install it; the text has pip's reason.
    """
    folder = cache / "layers" / _tag(python) / f"{package}-{release}"
    if folder.is_dir():
        return folder
    wheel = _wheels.fetch(package, release, cache)
    # A compiled wheel in the cache is this interpreter's; the base may be another one.
    source = str(wheel) if wheel.name.endswith("-none-any.whl") else f"{package}=={release}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
        done = _wheels.pip(
            *("install", "--no-deps", "--no-compile", "--only-binary=:all:", "--quiet"),
            *("--ignore-requires-python", "--target", str(Path(partial) / "site"), source),
            python=python,
        )
        if done.returncode:
            raise _wheels.WheelError(f"pip could not install {package} {release}: {_wheels.last_error(done)}")
        os.replace(Path(partial) / "site", folder)
    return folder


def path_of(lane: Lane, cache: Path, python: str) -> list[Path]:
    """Returns the folders of a lane in the order in which they go on the module search path."""
    pairs = (*lane.layers, *COMPANIONS.items())
    return [layer(package, release, cache, python) for package, release in pairs]


def conflicts(lane: Lane, cache: Path) -> list[str]:
    """Returns the requirements among a lane's own layers that its pins do not meet (empty: they install together)."""
    pins = {canonicalize_name(package): release for package, release in lane.layers}
    found = []
    for package, release in lane.layers:
        _, needs = _wheels.requirements(_wheels.fetch(package, release, cache))
        for need in needs:
            pinned = pins.get(canonicalize_name(need.name)) or _installed(need.name)
            if pinned is not None and not need.specifier.contains(pinned, prereleases=True):
                found.append(f"{package} {release} needs {need}, the lane has {pinned}")
    return found


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
