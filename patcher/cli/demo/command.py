"""The demo as a command: checks, progress, output files, exit code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from patcher.cli import terminal
from patcher.cli.demo import experiment, picture, report
from patcher.cli.demo.settings import SIZES
from patcher.cli.errors import NO, OK, CliError


def run(output: Path, size: str, *, steps: int | None, seed: int, plot: bool, as_json: bool) -> int:
    """Run the demo, write its files into ``output`` and print what it found; returns the exit code."""
    settings = SIZES[size]
    settings = replace(settings, seed=seed, steps=steps or settings.steps)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CliError(f"cannot write to {output}: {error.strerror}", "patcher demo --output FOLDER") from None
    with terminal.progress() as progress:
        found = experiment.run(settings, output, progress)
    written = [_write_json(found, output / "report.json")]
    if plot:
        written += _draw(found, output / "demo.png")
    if as_json:
        terminal.print_json(found.as_json())
    else:
        _show(found, written)
    return OK if found.isolated else NO


def _write_json(found: report.Report, path: Path) -> Path:
    path.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    return path


def _draw(found: report.Report, path: Path) -> list[Path]:
    """The picture, or a line that says what to install: a missing matplotlib must not cost the run."""
    try:
        picture.require_matplotlib()
    except CliError as missing:
        terminal.err().print(f"patcher: {missing}")
        return []
    picture.draw(found, path)
    return [path]


def _show(found: report.Report, written: list[Path]) -> None:
    console = terminal.out()
    console.print(
        f"Qwen3.5 with {found.parameters / 1e6:.1f} million parameters, {found.documents} documents, "
        f"{found.tokens:,} tokens, {found.seconds:.0f} s in all\n"
    )
    console.print(report.isolation_table(found))
    console.print()
    console.print(report.training_table(found))
    console.print(report.FAIRNESS)
    verdict = "The patched model keeps the documents apart." if found.isolated else "The patched model MIXES documents."
    console.print(f"\n{verdict} Written: {', '.join(map(str, written))}")
