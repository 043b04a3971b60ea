"""The drift scan: do all anchors stand in every published release?

    python -m tools.drift                                   # everything the project supports
    python -m tools.drift --package trl --from 1.10.0       # some releases of one package
    python -m tools.drift --latest --pre                    # the newest release of each, for a scheduled job

Wheels are downloaded alone and kept in a cache; their source is read, never imported. Exit code 1 on a required miss.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated

if __package__ in (None, ""):  # run as a file rather than with -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from packaging.utils import canonicalize_name
from packaging.version import Version
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from patcher.rewriting import Rewrite
from tools import _wheels, drift_families, drift_report, drift_scan
from tools.drift_scan import MISS, Finding
from tools.matrix_lanes import TRANSFORMERS

PROCESSES = min(2, os.cpu_count() or 1)
console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def packages() -> list[str]:
    """Returns the packages that are relied on: those that rewrites change, and transformers for its mixers."""
    from replacements import REWRITES

    return list(dict.fromkeys([*(rewrite.package for rewrite in REWRITES), "transformers"]))


def rewrites_of(package: str, version: str | None = None) -> list[Rewrite]:
    """Returns the rewrites of a package's functions; of a version, those that are to fit it."""
    from replacements import REWRITES

    wanted = canonicalize_name(package)
    found = [rewrite for rewrite in REWRITES if canonicalize_name(rewrite.package) == wanted]
    return [r for r in found if not (version and r.since) or Version(r.since) <= Version(version)]


def first_of(package: str) -> str | None:
    """Returns the oldest release that a rewrite of the package is to fit, or None for the first of all."""
    since = [rewrite.since for rewrite in rewrites_of(package)]
    return min(since, key=Version) if all(since) and since else None


def families() -> tuple[Sequence[drift_families.FamilyRow], dict[str, tuple[str, ...]]]:
    """Returns the table of model families, and every kernel name with the ops that it runs."""
    from replacements.packing.adapters import KERNELS
    from replacements.packing.families import FAMILIES

    return FAMILIES, {name: kernel.ops for name, kernel in KERNELS.items()}


def examine(package: str, version: str, wheel: Path) -> list[Finding]:
    """Looks for everything that the project relies on in one wheel."""
    found = drift_scan.scan(package, version, wheel, rewrites_of(package, version))
    if package == "transformers":
        found += drift_families.scan(package, version, wheel, *families())
    return found


def _parts(items: list, size: int = 4) -> list[list]:
    """Cuts a list into neighbours: releases side by side hold much that is the same."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def _examine_some(wheels: list[tuple[tuple[str, str], Path]]) -> dict[tuple[str, str], list[Finding]]:
    return {pair: examine(*pair, wheel) for pair, wheel in wheels}


def wanted(package: str, first: str | None, last: str | None, latest: bool, pre: bool) -> list[str]:
    """Returns the releases of a package to scan, oldest first."""
    if package == "transformers" and not (first or last or latest):
        return list(TRANSFORMERS)  # its wheels are large: the matrix's releases, unless a range is asked for
    found = _wheels.releases(package, first or first_of(package), last, pre)
    return found[-1:] if latest else found


def scan_all(pairs: list[tuple[str, str]], cache: Path, offline: bool = False) -> tuple[list[Finding], list[str]]:
    """Fetches and examines every (package, version); returns the findings in that order, and the failures."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("wheels", total=len(pairs))
        if offline:
            have = {package: _wheels.cached(package, cache) for package, _ in pairs}
            wheels = {(package, version): have[package][version] for package, version in pairs}
        else:
            wheels = _wheels.fetch_all(pairs, cache, each=lambda: progress.advance(task))
        failures = [str(wheel) for wheel in wheels.values() if isinstance(wheel, _wheels.WheelError)]
        good = {pair: wheel for pair, wheel in wheels.items() if isinstance(wheel, Path)}
        task = progress.add_task("anchors", total=len(good))
        found: dict[tuple[str, str], list[Finding]] = {}
        with ProcessPoolExecutor(PROCESSES) as pool:
            for some in as_completed([pool.submit(_examine_some, part) for part in _parts(list(good.items()))]):
                found |= some.result()
                progress.update(task, completed=len(found))
    return [finding for pair in good for finding in found[pair]], failures


def pairs_of(
    names: list[str],
    first: str | None,
    last: str | None,
    cache: Path,
    *,
    latest: bool = False,
    pre: bool = False,
    offline: bool = False,
) -> list[tuple[str, str]]:
    """Returns the (package, version) pairs to look at; `offline` asks the cache instead of the index."""
    pairs = []
    for package in names:
        if offline:
            have = _wheels.select(_wheels.cached(package, cache), first or first_of(package), last, pre)
            versions = have[-1:] if latest else have
        else:
            versions = wanted(package, first, last, latest, pre)
        pairs += [(package, version) for version in versions]
    return pairs


@app.command()
def main(
    package: Annotated[
        list[str] | None, typer.Option(help="Packages to scan (default: those of the rewrites, and transformers).")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", help="Oldest release.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Newest release.")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Only the newest release of each package.")] = False,
    pre: Annotated[bool, typer.Option("--pre", help="Release candidates too.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Only wheels in the cache.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where wheels are kept.")] = None,
    every: Annotated[bool, typer.Option("--every", help="One row a release, also where neighbours are alike.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder to write drift.md and drift.json to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False,
) -> None:
    """Scans the releases, prints release × anchor, and exits with 1 on any required miss."""
    names = package or packages()
    if (first or last) and len(names) != 1:
        raise typer.BadParameter("--from and --to need one --package: releases of several have no common order")
    start, folder = time.perf_counter(), _wheels.cache_root(cache)
    try:
        pairs = pairs_of(names, first, last, folder, latest=latest, pre=pre, offline=offline)
    except _wheels.WheelError as error:
        console.print(f"{error}\nUse --offline to scan the wheels that are already in {folder}.", style="red")
        raise typer.Exit(2) from error
    findings, failures = scan_all(pairs, folder, offline)
    if out is not None:
        write(findings, failures, out)
    _show(findings, failures, every, as_json)
    misses = sum(finding.status == MISS for finding in findings)
    seconds = time.perf_counter() - start
    summary = f"{len(pairs)} releases, {len(findings)} findings, {misses} missed, {len(failures)} not fetched"
    console.print(f"{summary}, {seconds:.0f} s", highlight=False)
    raise typer.Exit(1 if misses or failures or not findings else 0)


def write(findings: list[Finding], failures: list[str], folder: Path) -> None:
    """Writes drift.md and drift.json; what is in there of releases that were not read now stays."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "drift.json"
    old = json.loads(path.read_text("utf-8"))["findings"] if path.exists() else []
    read = {(finding.package, finding.version) for finding in findings}
    kept = [found for found in (Finding(**row) for row in old) if (found.package, found.version) not in read]
    order = [canonicalize_name(name) for name in packages()]
    both = [found for found in [*filter(_is_looked_for, kept), *findings] if canonicalize_name(found.package) in order]
    both.sort(key=lambda found: (order.index(canonicalize_name(found.package)), Version(found.version)))
    (folder / "drift.md").write_text(drift_report.markdown(both), "utf-8")
    path.write_text(json.dumps(_data(both, failures), indent=1) + "\n", "utf-8")


def _is_looked_for(finding: Finding) -> bool:
    """Whether the rewrites still ask for what was found; what is asked of transformers changes with its families."""
    rewrites = rewrites_of(finding.package, finding.version)
    columns = {drift_scan.column(rewrite, edit) for rewrite in rewrites for edit in rewrite.edits}
    return finding.column in columns or finding.package == "transformers"


def _data(findings: list[Finding], failures: list[str]) -> dict[str, list]:
    return {"findings": [dataclasses.asdict(finding) for finding in findings], "failures": failures}


def _show(findings: list[Finding], failures: list[str], every: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps(_data(findings, failures)))
        return
    screen = Console()
    for table in drift_report.tables(findings, every):
        screen.print(table)
    for text in (*drift_report.details(findings), *failures):
        screen.print(text, style="red", markup=False, highlight=False)


if __name__ == "__main__":
    app()
