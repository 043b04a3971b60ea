"""Version of this distribution, and of others."""

from __future__ import annotations

import sys

__version__ = "0.1.0"


def package_version(package: str) -> str | None:
    """Version of an importable package, from the package itself if it says so, else from its metadata."""
    version = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(version, str):
        return version
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
