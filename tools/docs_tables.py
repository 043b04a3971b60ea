"""Writes docs/families.md and docs/versions.md from the results of the census, the version matrix and the drift scan.

    python -m tools.docs_tables
    python -m tools.docs_tables --check

`--check` writes nothing, and exits with 1 if a page is not what the results say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from replacements.packing.families import FAMILIES, Family
from tools.drift_scan import MISS
from tools.matrix_judge import MARKS

ROOT = Path(__file__).resolve().parents[1]
RESULTS, DOCS = ROOT / "tools" / "results", ROOT / "docs"
#: Outcomes of one family in one release, the one that counts most first; and in words, with the patch and without.
_PATCHED = {
    "leaks": "**leaks**",
    "raises": "raises",
    "not built": "not built",
    "differs": "packs, differs",
    "padded": "padded",
    "isolated": "packs",
}
_STOCK = {**_PATCHED, "leaks": "leaks", "isolated": "right"}
_NOTHING = "There are no results yet; `python -m tools.{tool} --out tools/results` makes them."

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Rows = list[dict[str, Any]]


def results(name: str) -> Any:
    """What a tool wrote, or `None` if it has not been run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def table(heading: Iterable[str], body: Iterable[Iterable[str]]) -> Iterator[str]:
    """A Markdown table, line by line."""
    heading = list(heading)
    for cells in (heading, ["---"] * len(heading), *body):
        yield f"| {' | '.join(cells)} |"


def families(census: Rows | None) -> str:
    """The page on model families."""
    lines = [
        "# Model families",
        "",
        "<!-- Written by `python -m tools.docs_tables`; do not edit. -->",
        "",
        "A family not listed is treated by what it is made of: attention alone packs if the probe finds no leak, and",
        "layers that carry state along the row and are in no row of the first table train padded. "
        "[Add a family](add-a-family.md).",
        "",
        "## What is known of each",
        "",
        *table(("family", "layers", "ops that are given the boundaries"), map(_known, FAMILIES)),
        "",
        "## What came of it",
        "",
    ]
    if census is None:
        return "\n".join([*lines, _NOTHING.format(tool="census"), ""])
    releases = sorted({row["transformers"] for row in census}, key=_order)
    lines += [
        "Measured on tiny random models, on a CPU without kernels: stock, then patched, by transformers release. "
        "*leaks*: the documents of a row",
        "move one another; *raises*: the model refuses packed rows; *packs*: each document is what it is alone, in",
        "log-probabilities and gradients; *padded*: the guard keeps the family from packing; –: the release does not "
        "have it. The worst",
        "of evaluation and training, with and without `seq_idx` in the batch. All figures are in",
        "[tools/results/census.md](../tools/results/census.md).",
        "",
        *table(("family", *releases), _measured(census, releases)),
        "",
        *_different(census),
    ]
    return "\n".join(lines)


def _different(census: Rows) -> Iterator[str]:
    """What *packs, differs* means, and where it stands in the table."""
    named: dict[str, set[str]] = {}
    for row in census:
        if row["result"] == "differs" and row["patched"]:
            named.setdefault(row["family"], set()).add(row["transformers"])
    if not named:
        return
    where = "; ".join(f"{family} in {', '.join(sorted(found, key=_order))}" for family, found in named.items())
    yield f"*packs, differs*: {where}. There no document moves another, and still a packed document is not what"
    yield "the release makes of it alone, because what it makes of it alone is not causal: the tokens that follow a"
    yield "document change it, packed or not, patched or not. Its torch code sums the decays between chunks over the"
    yield "chunk that is entered instead of the one that is left, and so scales a state by decays of tokens that come"
    yield "after it. Packed rows run the recurrence as published, as kernels and later releases do."
    yield ""


def _known(family: Family) -> tuple[str, str, str]:
    native = [f"`{name}` (keeps them apart itself, given `seq_idx`)" for name in family.native]
    return family.name, ", ".join([*(f"`{name}`" for name in family.mixers), *native]), ", ".join(family.ops)


def _measured(census: Rows, releases: list[str]) -> Iterator[tuple[str, ...]]:
    cells: dict[tuple[str, str, bool], set[str]] = {}
    for row in census:
        cells.setdefault((row["family"], row["transformers"], row["patched"]), set()).add(row["result"])
    for family in dict.fromkeys(row["family"] for row in census):
        found = []
        for release in releases:
            stock, patched = (cells.get((family, release, which), set()) for which in (False, True))
            words = [_worst(stock, _STOCK), _worst(patched, _PATCHED)]
            found.append(" → ".join(words) if all(words) else "–")
        yield family, *found


def _worst(seen: set[str], words: dict[str, str]) -> str:
    return next((word for result, word in words.items() if result in seen), "")


def versions(matrix: Rows | None, drift: dict[str, Rows] | None) -> str:
    """The page on releases of TRL, transformers and unsloth_zoo."""
    lines = [
        "# Supported versions",
        "",
        "<!-- Written by `python -m tools.docs_tables`; do not edit. -->",
        "",
        "No behaviour hangs on a version number: each release is asked for what it has. Here is what was tried.",
        "",
        "## Trained",
        "",
    ]
    if matrix is None:
        lines.append(_NOTHING.format(tool="matrix"))
    else:
        lines += [
            "Packed steps through the real `SFTTrainer`, loss and gradients compared with the documents alone. "
            f"{MARKS['ok']} both are the same; {MARKS['TRL cannot']} TRL itself cannot",
            f"train there; {MARKS['not together']} the releases do not install together; {MARKS['fails']} failed; "
            "empty: not tried. Every run is in [tools/results/matrix.md](../tools/results/matrix.md).",
            "",
            *_trained(matrix),
        ]
    lines += ["", "## Read", ""]
    if drift is None:
        lines.append(_NOTHING.format(tool="drift"))
    else:
        lines += [
            "Releases in whose source each place to edit, and each way to a kernel, was looked for. The tables are in",
            "[tools/results/drift.md](../tools/results/drift.md); [how to read them](read-a-drift-report.md).",
            "",
            *table(("package", "releases", "how many", "required places missing"), _read(drift["findings"])),
        ]
    return "\n".join([*lines, ""])


def _trained(matrix: Rows) -> Iterator[str]:
    columns = sorted({row["transformers"] for row in matrix}, key=_order)
    cells: dict[tuple[str, str], list[str]] = {}
    for row in matrix:
        beside = row["lane"].partition("+")[2]
        mark = MARKS[row["status"]] + (f" with {beside}" if beside else "")
        cells.setdefault((row["trl"], row["transformers"]), []).append(mark)
    releases = sorted({row["trl"] for row in matrix}, key=_order)
    body = ([trl, *(", ".join(cells.get((trl, column), [])) for column in columns)] for trl in releases)
    yield from table(("TRL \\ transformers", *columns), body)
    lanes: dict[tuple[str, str], list[str]] = {}  # many lanes of one release have one reason
    for row in matrix:
        if row["status"] != "ok" and row["reasons"]:
            lanes.setdefault((MARKS[row["status"]], row["reasons"][0]), []).append(row["lane"])
    for (mark, reason), named in lanes.items():
        yield f"\n{mark} {', '.join(named)}: {reason}"


def _read(findings: Rows) -> Iterator[tuple[str, ...]]:
    for package in dict.fromkeys(row["package"] for row in findings):
        mine = [row for row in findings if row["package"] == package]
        releases = list(dict.fromkeys(row["version"] for row in mine))
        missed = [f"{row['version']}: {row['column']}" for row in mine if row["status"] == MISS]
        yield package, f"{releases[0]} to {releases[-1]}", str(len(releases)), ", ".join(missed) or "none"


def _order(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdigit()]


def pages() -> dict[Path, str]:
    """Each page and what it should say."""
    return {
        DOCS / "families.md": families(results("census")),
        DOCS / "versions.md": versions(results("matrix"), results("drift")),
    }


@app.command()
def main(
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a page is stale.")] = False,
) -> None:
    """Writes the pages, or says which of them are out of date."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text("utf-8") != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: python -m tools.docs_tables")
        else:
            path.write_text(pages()[path], "utf-8")
            print(f"written: {path.relative_to(ROOT)}")
    raise typer.Exit(1 if check and stale else 0)


if __name__ == "__main__":
    app()
