"""The census: which families keep packed documents apart, stock and patched, in which transformers.

    python -m tools.census                              the installed transformers
    python -m tools.census --lanes 5.24.0,4.57.6        other releases, as layers over this environment
    python -m tools.census --families qwen3_5,bamba --json

Exit code 1 if documents leak into each other with the patch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from packaging.version import Version
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tools import _wheels, matrix_layers
from tools.census_measure import FORMS, LENGTHS, LOG_PROBS, MODES, Row, census
from tools.matrix_lanes import COMPANIONS, TRANSFORMERS
from tools.tiny_models import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
LANES = ("5.24.0", "5.17.0", "5.14.1", "5.9.0", "4.57.6")
#: The cells of a family, left to right.
CELLS = [(patched, mode, form) for patched in (False, True) for mode in MODES for form in FORMS]
_COLORS = {"isolated": "green", "padded": "yellow", "leaks": "red", "differs": "blue", "raises": "magenta"}

console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def chosen(families: str | None) -> list[str]:
    """The families that were named, else all.

    Raises:
        typer.BadParameter: tests/families.json has no such family.
    """
    names = families.split(",") if families else list(FAMILIES)
    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise typer.BadParameter(f"no family {', '.join(unknown)}; there are: {', '.join(FAMILIES)}")
    return names


def here(families: list[str]) -> Iterator[list[Row]]:
    """The census of the transformers that is imported."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    yield from census(families)


def in_lane(release: str, families: list[str]) -> Iterator[list[Row]]:
    """The census of another transformers, in a process of its own.

    Raises:
        RuntimeError: The process came to an early end; the text has its last line.
    """
    pairs = (("transformers", release), *TRANSFORMERS[release].items(), *COMPANIONS.items())
    path = [matrix_layers.layer(*pair, _wheels.cache_root(None), sys.executable) for pair in pairs]
    fixed = {"PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tools.census", "--lines", "--families", ",".join(families)]
    # Errors go to a file: a pipe that nobody reads while the rows come would fill up and stop the child.
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            command, env=os.environ | fixed, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        with child:
            for line in child.stdout:
                yield [Row(**row) for row in json.loads(line)]
        errors.seek(0)
        if child.returncode:
            raise RuntimeError(f"transformers {release}: {(errors.read().splitlines() or ['no output'])[-1]}")


def said(row: Row) -> str:
    """One cell in words: how far a leak reaches, and why something was not packed."""
    if row.result in ("leaks", "differs"):
        by_more = row.log_probs > LOG_PROBS
        return f"{row.result} {row.log_probs:.1g}" if by_more else f"{row.result}, gradients {row.gradients:.1g}"
    if row.result == "isolated":
        return f"isolated {max(row.log_probs, row.gradients or 0):.0e}"
    short = row.detail.partition(":")[0]  # the reason's code, or the error's name
    return f"{row.result}: {short}" if row.result in ("padded", "raises") else row.result


def lines(rows: list[Row]) -> Iterator[tuple[str, ...]]:
    """The table of one transformers: family, then its cells."""
    cells = {(row.family, row.patched, row.mode, row.form): row for row in rows}
    for family in dict.fromkeys(row.family for row in rows):
        row = [cells[(family, *cell)] for cell in CELLS]
        if row[0].result != "absent":
            yield family, *map(said, row)


def headings() -> list[str]:
    """Of the table's columns."""
    return ["family", *(f"{'patched' if patched else 'stock'}, {mode}, {form}" for patched, mode, form in CELLS)]


def summary(rows: list[Row]) -> str:
    """How many families ended how, with the patch; a family counts by its worst cell."""
    order = ("leaks", "raises", "not built", "differs", "padded", "isolated", "absent")
    worst: dict[str, str] = {}
    for row in rows:
        if row.patched:
            worst[row.family] = min(worst.get(row.family, "absent"), row.result, key=order.index)
    counts = Counter(worst.values())
    return ", ".join(f"{counts[result]} {result}" for result in order if counts[result])


def table(release: str, rows: list[Row]) -> Table:
    """For a terminal."""
    shown = Table(title=f"transformers {release}: {summary(rows)}", title_justify="left")
    for heading in headings():
        shown.add_column(heading, overflow="fold")
    for family, *cells in lines(rows):
        shown.add_row(family, *(f"[{_COLORS.get(cell.split()[0].strip(':,'), 'white')}]{cell}" for cell in cells))
    return shown


def markdown(found: dict[str, list[Row]]) -> str:
    """Every table, and what stands behind `raises`, `padded` and the like."""
    parts = ["# Census", ""]
    parts += [
        f"Documents of {', '.join(map(str, LENGTHS))} tokens in one row against each alone, float32, on a CPU without "
        "kernels. A number is the largest difference of a log-probability, or of a gradient relative to its "
        "parameter's largest.",
        "",
    ]
    for release, rows in found.items():
        parts += [f"## transformers {release}", "", f"With the patch: {summary(rows)}.", ""]
        parts += [f"| {' | '.join(cells)} |" for cells in (headings(), ["---"] * (len(CELLS) + 1), *lines(rows))]
        odd = dict.fromkeys(
            (row.family, "patched" if row.patched else "stock", row.result, row.detail)
            for row in rows
            if row.result in ("raises", "not built", "differs", "padded")
        )
        parts += ["", *(f"- {family}, {which}, {result}: {detail}" for family, which, result, detail in odd), ""]
    return "\n".join(parts)


def write(found: dict[str, list[Row]], folder: Path) -> None:
    """Writes census.md and census.json; families and releases that are in there and were not measured now stay."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "census.json"
    old = [Row(**row) for row in json.loads(path.read_text("utf-8"))] if path.exists() else []
    measured = {(row.transformers, row.family) for rows in found.values() for row in rows}
    kept = [row for row in old if row.family in FAMILIES and (row.transformers, row.family) not in measured]
    order = {family: place for place, family in enumerate(FAMILIES)}
    both: dict[str, list[Row]] = {}
    for row in sorted([*kept, *(row for rows in found.values() for row in rows)], key=lambda row: order[row.family]):
        both.setdefault(row.transformers, []).append(row)
    both = {release: both[release] for release in sorted(both, key=Version, reverse=True)}
    (folder / "census.md").write_text(markdown(both), "utf-8")
    path.write_text(json.dumps([asdict(row) for rows in both.values() for row in rows], indent=0) + "\n", "utf-8")


def taken(lanes: list[str], families: list[str]) -> dict[str, list[Row]]:
    """The censuses, by release; without lanes, of the installed one."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[str, list[Row]] = {}
    with Progress(*columns, console=console) as progress:
        for lane in lanes or ["installed"]:
            task = progress.add_task(f"transformers {lane}", total=len(families))
            for rows in in_lane(lane, families) if lanes else here(families):
                found.setdefault(rows[0].transformers, []).extend(rows)
                progress.advance(task)
    return found


@app.command()
def main(
    families: Annotated[str | None, typer.Option(help="Names of tests/families.json, all if left out.")] = None,
    lanes: Annotated[str | None, typer.Option(help=f"Releases of transformers, or all: {', '.join(LANES)}.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write census.md and census.json to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False,
    as_lines: Annotated[bool, typer.Option("--lines", hidden=True)] = False,
) -> None:
    """Takes the census, prints tables, and exits with 1 if anything leaks with the patch."""
    names = chosen(families)
    if as_lines:  # the process of a lane: one line a family, as they come
        for rows in here(names):
            print(json.dumps([asdict(row) for row in rows]), flush=True)
        return
    releases = [] if lanes is None else list(LANES) if lanes == "all" else lanes.split(",")
    found = taken(releases, names)
    if out is not None:
        write(found, out)
    if as_json:
        print(json.dumps([asdict(row) for rows in found.values() for row in rows]))
    else:
        for release, rows in found.items():
            Console(width=None if sys.stdout.isatty() else 200).print(table(release, rows))
    leaks = [row for rows in found.values() for row in rows if row.silent_leak]
    for row in leaks:
        console.print(f"leaks with the patch: {row.family}, {row.mode}, {row.form}, transformers {row.transformers}")
    raise typer.Exit(1 if leaks else 0)


if __name__ == "__main__":
    app()
