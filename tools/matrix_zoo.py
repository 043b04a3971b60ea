"""The zoo lanes: unsloth_zoo's dataset preparation, published and rewritten, under two pairs of TRL and transformers.

    python -m tools.matrix_zoo                         # the newest release and six older ones
    python -m tools.matrix_zoo --each-text             # one release for each text that the function ever had

A pair is one process; it imports one release after the other. Exit code 1 if anything does not hold.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

if __package__ in (None, ""):  # run as a file rather than with -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from rich.console import Console
from rich.table import Table

from tools import _wheels, drift, matrix_layers
from tools.matrix_lanes import COMPANIONS, TRANSFORMERS

PACKAGE, MODULE, FUNCTION = "unsloth_zoo", "unsloth_zoo.dataset_utils", "sft_prepare_dataset"
PAIRS = (("1.15.0", "5.17.0"), ("0.22.2", "4.57.6"))
DATASETS = {"datasets": "4.8.5", "fsspec": "2026.2.0"}  # the zoo takes none newer
RELEASES = ("2025.8.6", "2025.12.7", "2026.2.1", "2026.3.7", "2026.8.4", "2026.10.4", "2026.10.9")
MUST_LOSE = "published lost tokens"  # else the lane shows nothing

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "tests" / "matrix" / "zoo_smoke.py"
console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def texts(cache: Path, offline: bool) -> list[str]:
    """Returns the first release of each text of the function, comments and layout aside."""
    found: dict[str, str] = {}
    pairs = drift.pairs_of([PACKAGE], None, None, cache, offline=offline)
    for (_, release), wheel in _wheels.fetch_all(pairs, cache).items():
        if isinstance(wheel, _wheels.WheelError):
            raise wheel
        tree = ast.parse(_wheels.read(wheel, MODULE) or "")
        node = next(node for node in tree.body if getattr(node, "name", None) == FUNCTION)
        found.setdefault(hashlib.sha256(ast.unparse(node).encode()).hexdigest(), release)
    return list(found.values())


def path_of(trl: str, transformers: str, cache: Path, python: str) -> list[Path]:
    """Returns the folders of a pair, first on the path first."""
    pins = {"trl": trl, "transformers": transformers, **TRANSFORMERS[transformers], **DATASETS, **COMPANIONS}
    return [matrix_layers.layer(package, release, cache, python) for package, release in pins.items()]


def run(pair: tuple[str, str], releases: list[str], cache: Path, python: str, timeout: float) -> dict[str, dict]:
    """Runs all releases under one pair; returns what each report says.

    Raises:
        RuntimeError: the process failed; the text is the end of what it said.
    """
    folders = [f"{release}={matrix_layers.layer(PACKAGE, release, cache, python)}" for release in releases]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PATCHER_")}
    fixed = {"HF_HUB_OFFLINE": "1", "CI": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    fixed["PYTHONPATH"] = os.pathsep.join(map(str, [*path_of(*pair, cache, python), ROOT]))
    command = [python, str(SMOKE), *folders]
    done = subprocess.run(command, env=inherited | fixed, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise RuntimeError("\n".join(done.stderr.splitlines()[-5:]))
    return json.loads(done.stdout.splitlines()[-1])


def failures(report: dict) -> list[str]:
    """Returns what does not hold of one release; kinds of data that it does not know are none."""
    found = []
    for kind, answers in report.items():
        if isinstance(answers, str):
            found += [f"{kind}: {answers}"] if answers.startswith("published: ") else []
        else:
            found += [f"{kind}: not {name}" for name, holds in answers.items() if not holds]
    return found


def kinds(report: dict) -> list[str]:
    """Returns the kinds of data that were compared."""
    return [kind for kind, answers in report.items() if not isinstance(answers, str) and MUST_LOSE in answers]


@app.command()
def main(
    releases: Annotated[list[str] | None, typer.Argument(help="Releases of unsloth_zoo.")] = None,
    each_text: Annotated[bool, typer.Option("--each-text", help="One release for each text of the function.")] = False,
    base: Annotated[str, typer.Option(help="Interpreter of the base environment.")] = sys.executable,
    cache: Annotated[Path | None, typer.Option(help="Where wheels and layers are kept.")] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Only wheels in the cache.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds before a pair is given up.")] = 1200.0,
) -> None:
    """Runs the lanes, prints the table, and exits with 1 if anything does not hold."""
    folder, failed, table = _wheels.cache_root(cache), 0, Table("unsloth_zoo", "trl", "transformers", "kinds", "result")
    wanted = releases or (texts(folder, offline) if each_text else list(RELEASES))
    for pair in PAIRS:
        try:
            reports = run(pair, wanted, folder, base, timeout)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            console.print(f"{pair}: {error}", style="red", markup=False)
            failed += len(wanted)
            continue
        for release, report in reports.items():
            wrong = failures(report) or ([] if kinds(report) else ["no kind of data was compared"])
            failed += bool(wrong)
            table.add_row(release, *pair, ", ".join(kinds(report)), "; ".join(wrong) or "holds")
    Console().print(table)
    console.print(f"{len(PAIRS) * len(wanted) - failed} passed, {failed} failed", highlight=False)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
