"""Published releases: what the package index lists, and the wheels themselves, kept in a cache.

Everything goes through pip, so whatever index, mirror or credentials the user has configured is what is used. Wheels
are read straight from the zip file: nothing is imported, no dependency is fetched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

THREADS = 4  # downloads at once: polite to the index, and enough to hide its latency


class WheelError(RuntimeError):
    """A release could not be listed, downloaded or read; the text says which and why."""


def cache_root(override: Path | None = None) -> Path:
    """Returns the cache folder: the override, else `$XDG_CACHE_HOME/trl-patcher`, else `~/.cache/trl-patcher`."""
    if override is not None:
        return override.expanduser().resolve()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "trl-patcher"


def pip(*arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Runs an interpreter's pip and returns what it said; never raises for its exit code."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def last_error(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the last line of pip's complaint, which names the cause."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [f"exit code {done.returncode}"])[-1]


def _listed(package: str, pre: bool) -> list[str]:
    """Asks the index for every release of a package, newest first, as text."""
    # A release for a newer Python is still worth reading, so Requires-Python is ignored.
    command = ["index", "versions", package, "--ignore-requires-python", *(["--pre"] if pre else [])]
    done = pip(*command, "--json")
    if done.returncode == 0:
        return list(json.loads(done.stdout)["versions"])
    if "no such option" in done.stderr:  # pip before 25.1
        done = pip(*command)
        found = re.search(r"^Available versions:(.*)$", done.stdout, re.MULTILINE)
        if done.returncode == 0 and found:
            return [version.strip() for version in found[1].split(",")]
    raise WheelError(f"pip could not list the releases of {package}: {last_error(done)}")


def select(versions: Iterable[str], first: str | None = None, last: str | None = None, pre: bool = False) -> list[str]:
    """Returns the versions within [first, last], oldest first; pre-releases only when asked for."""
    low, high = (Version(bound) if bound else None for bound in (first, last))
    kept = [
        version
        for version in map(Version, set(versions))
        if (low is None or version >= low) and (high is None or version <= high) and (pre or not version.is_prerelease)
    ]
    return [str(version) for version in sorted(kept)]


def releases(package: str, first: str | None = None, last: str | None = None, pre: bool = False) -> list[str]:
    """Lists the published releases of a package in [first, last], oldest first.

    Yanked releases count: people who pinned one still run it.

    Raises:
        WheelError: pip could not reach the index or does not know the package.
    """
    return select(_listed(package, pre), first, last, pre)


def _folder(cache: Path, package: str) -> Path:
    return cache / "wheels" / canonicalize_name(package)


def cached(package: str, cache: Path) -> dict[str, Path]:
    """Returns the wheels of a package that are in the cache, by version."""
    wheels = {}
    for path in sorted(_folder(cache, package).glob("*.whl")):
        _, version, _, _ = parse_wheel_filename(path.name)
        wheels[str(version)] = path
    return wheels


def fetch(package: str, version: str, cache: Path) -> Path:
    """Returns the wheel of one release, downloading it alone (no dependencies) if the cache lacks it.

    Raises:
        WheelError: the index has no wheel of that release that this interpreter could install, or cannot be reached.
    """
    for have, path in cached(package, cache).items():
        if Version(have) == Version(version):
            return path
    folder = _folder(cache, package)
    folder.mkdir(parents=True, exist_ok=True)
    # Downloaded beside its final place and renamed, so that a broken download never looks like a cached wheel.
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        done = pip(
            *("download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--no-cache-dir"),
            *("--quiet", "--dest", partial, f"{package}=={version}"),
        )
        got = list(Path(partial).glob("*.whl"))
        if done.returncode or len(got) != 1:
            raise WheelError(f"pip could not download the wheel of {package} {version}: {last_error(done)}")
        final = folder / got[0].name
        os.replace(got[0], final)
    return final


def fetch_all(
    wanted: Iterable[tuple[str, str]],
    cache: Path,
    each: Callable[[], object] = lambda: None,
) -> dict[tuple[str, str], Path | WheelError]:
    """Fetches several (package, version) pairs at once; a failure is returned in place of its path, not raised.

    Args:
        wanted: the (package, version) pairs.
        cache: the cache folder.
        each: called when one is done, for a progress bar.
    """
    wanted = list(wanted)
    found: dict[tuple[str, str], Path | WheelError] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        jobs = {pool.submit(fetch, package, version, cache): (package, version) for package, version in wanted}
        for job in as_completed(jobs):
            error = job.exception()
            if error is not None and not isinstance(error, WheelError):
                raise error
            found[jobs[job]] = error if error is not None else job.result()
            each()
    return {pair: found[pair] for pair in wanted}


def _open(wheel: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(wheel)
    except (OSError, zipfile.BadZipFile) as error:
        raise WheelError(f"{wheel} is not a readable wheel ({error}); delete it and run again") from error


def read(wheel: Path, module: str) -> str | None:
    """Returns the source of a dotted module in a wheel, line ends as they are in the file; None if it is not there."""
    stem = module.replace(".", "/")
    with _open(wheel) as archive:
        names = set(archive.namelist())
        for name in (f"{stem}.py", f"{stem}/__init__.py"):
            if name in names:
                return archive.read(name).decode("utf-8")
    return None


def requirements(wheel: Path) -> tuple[str | None, list[Requirement]]:
    """Returns a wheel's Requires-Python and the requirements that hold without extras."""
    with _open(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode("utf-8"), headersonly=True)
    needs = [Requirement(line) for line in metadata.get_all("Requires-Dist") or ()]
    plain = [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return metadata.get("Requires-Python"), plain
