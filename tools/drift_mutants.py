"""Mutated sources: does a rewrite fit what merely looks different, and refuse what means something else?

    python -m tools.drift_mutants

From the target functions of every published release it makes mutants, always the same ones. Meaning-preserving mutants
must be patched as the original is, once, at the same statement; meaning-changing ones must be refused with the nearest
candidate. Exit code 1 if one is missed in silence, patched wrongly or refused wrongly.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

if __package__ in (None, ""):  # run as a file rather than with -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools import _wheels, drift, drift_break, drift_preserve
from tools.drift_check import Check
from tools.drift_subject import Subject

LEAST = 2000  # mutants that a full run must make, so that a broken generator does not pass for success
console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Result:
    """One mutant and what became of it; `fault` is empty when that was right."""

    package: str
    version: str
    rewrite: str
    kind: str
    preserving: bool
    fault: str = ""
    text: str = ""  # of a mutant at fault, to look at


def examine(package: str, version: str, wheel: Path) -> list[Result]:
    """Makes and tries every mutant of one release."""
    results = []
    for rewrite in drift.rewrites_of(package, version):
        source = _wheels.read(wheel, rewrite.module)
        if source is not None:
            results += _examine(Subject.cut(source, rewrite), package, version)
    return results


def _examine(subject: Subject, package: str, version: str) -> list[Result]:
    name, check = subject.rewrite.name, Check(subject)
    seeded = random.Random(f"{package} {version} {name}")
    results = []
    for kind, text, renamed in drift_preserve.mutants(subject, seeded):
        fault = check.patched_wrongly(text, renamed)
        results.append(Result(package, version, name, kind, True, fault, text if fault else ""))
    for kind, text, site in drift_break.mutants(subject):
        fault = check.accepted_wrongly(text, site, removed=kind == "removed")
        results.append(Result(package, version, name, kind, False, fault, text if fault else ""))
    return results


def distinct(pairs: dict[tuple[str, str], Path]) -> dict[tuple[str, str], Path]:
    """Leaves out zoo releases whose functions read like an older one's; of TRL every release stays."""
    kept, seen = {}, set()
    for (package, version), wheel in pairs.items():
        rewrites = drift.rewrites_of(package, version)
        texts = [_wheels.read(wheel, rewrite.module) for rewrite in rewrites]
        cut = tuple(Subject.cut(text, rewrite).text for text, rewrite in zip(texts, rewrites, strict=True) if text)
        if package == "trl" or cut not in seen:
            kept[package, version] = wheel
        seen.add(cut)
    return kept


def run(wheels: dict[tuple[str, str], Path]) -> list[Result]:
    """Tries the mutants of all given wheels, two processes at once."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    results: list[Result] = []
    with (
        Progress(*columns, console=console, transient=True) as progress,
        ProcessPoolExecutor(min(2, os.cpu_count() or 1)) as pool,
    ):
        task = progress.add_task("mutants", total=len(wheels))
        for job in as_completed([pool.submit(examine, *pair, wheel) for pair, wheel in wheels.items()]):
            results += job.result()
            progress.update(task, advance=1, description=f"{len(results)} mutants")
    return sorted(results, key=lambda result: (result.package, result.version, result.rewrite, result.kind))


def table(results: list[Result]) -> Table:
    """Counts the mutants by package, kind and verdict."""
    shown = Table("package", "mutant", "must", "made", "right", "wrong", title=f"{len(results)} mutants")
    made = Counter((r.package, not r.preserving, r.kind) for r in results)
    wrong = Counter((r.package, not r.preserving, r.kind) for r in results if r.fault)
    for (package, changing, kind), count in sorted(made.items()):
        bad = wrong[package, changing, kind]
        cells = (str(count), str(count - bad), f"[red]{bad}" if bad else "0")
        shown.add_row(package, kind, "be refused" if changing else "be patched", *cells)
    return shown


@app.command()
def main(
    package: Annotated[list[str] | None, typer.Option(help="Packages (default: those of the rewrites).")] = None,
    first: Annotated[str | None, typer.Option("--from", help="Oldest release.")] = None,
    last: Annotated[str | None, typer.Option("--to", help="Newest release.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only wheels in the cache.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Where wheels are kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write mutants.json (counts and faults) to.")] = None,
    least: Annotated[int, typer.Option(help="Fail if fewer mutants than this were made.")] = LEAST,
) -> None:
    """Makes the mutants of all releases, tries them, prints the counts."""
    start, folder = time.perf_counter(), _wheels.cache_root(cache)
    packages = [name for name in package or drift.packages() if drift.rewrites_of(name)]
    pairs = drift.pairs_of(packages, first, last, folder, offline=offline)
    fetched = _wheels.fetch_all(pairs, folder)
    failures = [str(wheel) for wheel in fetched.values() if isinstance(wheel, _wheels.WheelError)]
    results = run(distinct({pair: wheel for pair, wheel in fetched.items() if isinstance(wheel, Path)}))
    faults = [result for result in results if result.fault]
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        counts = Counter(f"{r.package}: {r.kind}" for r in results)
        data = {"mutants": len(results), "counts": counts, "faults": [asdict(fault) for fault in faults]}
        (out / "mutants.json").write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    Console().print(table(results))
    for fault in faults[:20]:
        console.print(f"{fault.package} {fault.version} {fault.rewrite}, {fault.kind}: {fault.fault}", markup=False)
    for failure in failures:
        console.print(failure, style="red", markup=False)
    seconds = time.perf_counter() - start
    console.print(f"{len(results) - len(faults)} passed, {len(faults)} failed", highlight=False)
    console.print(f"{len(results)} mutants, {seconds:.0f} s", highlight=False)
    raise typer.Exit(1 if faults or failures or len(results) < least else 0)


if __name__ == "__main__":
    app()
