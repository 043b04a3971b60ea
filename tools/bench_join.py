"""One page of several runs of `tools/bench.py`, that need different packages or machines.

python -m tools.bench_join tools/results/bench_h200 "With kernels=a.json" "Without kernels=b.json"
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tools.bench_report import Report, facts

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    stem: Annotated[Path, typer.Argument(help="What is written, without its ending.")],
    runs: Annotated[list[str], typer.Argument(help="A heading and the JSON of a run each: HEADING=FILE.")],
) -> None:
    """Writes `stem`.md and `stem`.json."""
    found = {}
    for run in runs:
        heading, _, path = run.partition("=")
        found[heading] = json.loads(Path(path).read_text("utf-8"))
    title = next(iter(found.values()))["machine"]["device"]
    sections = [f"## {heading}\n\n{_section(run)}" for heading, run in found.items()]
    stem.with_suffix(".md").write_text("\n".join([f"# Benchmarks, {title}\n", *sections]), "utf-8")
    stem.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def _section(run: dict[str, Any]) -> str:
    tables = [Report(**table).markdown() for table in run["tables"]]
    return "\n".join([facts(run["machine"]), "", *tables])


if __name__ == "__main__":
    app()
