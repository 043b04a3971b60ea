"""The version matrix: trains in every pair of TRL and transformers releases, by layering folders over one environment.

    python -m tools.matrix --subset ci
    python -m tools.matrix trl-1.16.0-tf-5.24.0

One lane runs at a time. Exit code 1 if any lane fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

if __package__ in (None, ""):  # run as a file rather than with -m
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tools import _wheels, matrix_judge, matrix_layers
from tools.matrix_lanes import FULL, SUBSETS, Lane

ROOT = Path(__file__).resolve().parents[1]
SMOKE = ROOT / "tests" / "matrix" / "smoke.py"
console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def chosen(names: list[str], subset: str) -> list[Lane]:
    """Returns the lanes that were named, else those of the subset.

    Raises:
        typer.BadParameter: no such lane or subset.
    """
    if subset not in SUBSETS:
        raise typer.BadParameter(f"no subset {subset!r}; there are: {', '.join(SUBSETS)}")
    if not names:
        return list(SUBSETS[subset])
    known = {lane.name: lane for lane in FULL}
    missing = [name for name in names if name not in known]
    if missing:
        raise typer.BadParameter(f"no lane {', '.join(missing)}; lanes are named like {FULL[0].name}")
    return [known[name] for name in names]


def child(lane: Lane, path: list[Path], python: str, order: str, timeout: float) -> tuple[dict | None, str]:
    """Runs a lane's program; returns what it printed, or None and the reason."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PATCHER_")}
    # CI and the offline switch keep TRL from sending telemetry and everything else from waiting for a hub.
    fixed = {"HF_HUB_OFFLINE": "1", "CI": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    if "triton" in dict(lane.beside):
        fixed["TRITON_INTERPRET"] = "1"  # its kernels run on CPU tensors then
    fixed["PYTHONPATH"] = os.pathsep.join(map(str, [*path, ROOT]))
    extras = [part for extra in lane.extras for part in ("--extra", extra)]
    command = [python, str(SMOKE), "--order", order, *extras, *lane.families]
    try:
        done = subprocess.run(
            command, env=inherited | fixed, capture_output=True, text=True, timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return None, f"no result within {timeout:g} s"
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        complaint = [line for line in done.stderr.splitlines() if line.strip()]
        return None, complaint[-1] if complaint else f"exit code {done.returncode}"
    return json.loads(lines[-1]), ""


def run(lane: Lane, cache: Path, python: str, order: str, timeout: float) -> matrix_judge.Verdict:
    """Runs one lane over its layers and judges it."""
    clashes = matrix_layers.conflicts(lane, cache)
    if clashes:
        return matrix_judge.Verdict(lane, matrix_judge.APART, clashes)
    return run_in(lane, matrix_layers.path_of(lane, cache, python), python, order, timeout)


def run_in(lane: Lane, path: list[Path], python: str, order: str, timeout: float) -> matrix_judge.Verdict:
    """Runs one lane with the given folders first on the path (none: as the environment is) and judges it."""
    start = time.perf_counter()
    result, reason = child(lane, path, python, order, timeout)
    if result is None:
        verdict = matrix_judge.Verdict(lane, matrix_judge.FAILS, [reason])
    else:
        verdict = matrix_judge.judge(lane, result, stock_only=order == "none")
    verdict.seconds = time.perf_counter() - start
    return verdict


def lane_here() -> Lane:
    """Returns the lane of the releases that this environment has."""
    here = Lane(version("trl"), version("transformers"))
    return next((lane for lane in FULL if lane.name == here.name), here)


def write(verdicts: list[matrix_judge.Verdict], folder: Path) -> None:
    """Writes matrix.md and matrix.json; lanes that are in there and did not run now stay."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {lane.name: lane for lane in FULL}
    old = json.loads((folder / "matrix.json").read_text("utf-8")) if (folder / "matrix.json").exists() else []
    kept = {row["lane"]: matrix_judge.Verdict.of(known[row["lane"]], row) for row in old if row["lane"] in known}
    named = kept | {verdict.lane.name: verdict for verdict in verdicts}
    order = list(known)
    verdicts = sorted(
        named.values(), key=lambda verdict: order.index(verdict.lane.name) if verdict.lane.name in known else -1
    )
    (folder / "matrix.md").write_text(matrix_judge.markdown(verdicts), "utf-8")
    rows = [verdict.row() for verdict in verdicts]
    (folder / "matrix.json").write_text(json.dumps(rows, indent=1) + "\n", "utf-8")


@app.command()
def main(
    lanes: Annotated[list[str] | None, typer.Argument(help="Lanes to run, like trl-1.16.0-tf-5.24.0.")] = None,
    subset: Annotated[str, typer.Option(help="Which lanes, if none are named: full or ci.")] = "full",
    base: Annotated[str, typer.Option(help="Interpreter of the base environment.")] = sys.executable,
    cache: Annotated[Path | None, typer.Option(help="Where wheels and layers are kept.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write matrix.md and matrix.json to.")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Run stock TRL only, without the patch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False,
    here: Annotated[bool, typer.Option("--here", help="One lane: this environment, as it is.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds before a lane is given up.")] = 300.0,
) -> None:
    """Runs the lanes, prints the table, and exits with 1 if any lane fails."""
    wanted = [lane_here()] if here else chosen(lanes or [], subset)
    verdicts = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("lanes", total=len(wanted))
        for index, lane in enumerate(wanted):
            progress.update(task, description=lane.name)
            # Which of the two is imported first must not matter, so the lanes take turns.
            order = "none" if stock else ("last", "first")[index % 2]
            try:
                if here:
                    verdicts.append(run_in(lane, [], sys.executable, order, timeout))
                else:
                    verdicts.append(run(lane, _wheels.cache_root(cache), base, order, timeout))
            except _wheels.WheelError as error:
                verdicts.append(matrix_judge.Verdict(lane, matrix_judge.FAILS, [str(error)]))
            progress.console.print(f"{verdicts[-1].status:12} {lane.name}  {'; '.join(verdicts[-1].reasons)[:300]}")
            progress.advance(task)
    if out is not None:
        write(verdicts, out)
    if as_json:
        print(json.dumps([verdict.row() for verdict in verdicts]))
    else:
        Console().print(matrix_judge.table(verdicts))
    failed = [verdict for verdict in verdicts if verdict.status == matrix_judge.FAILS]
    console.print(f"{len(verdicts) - len(failed)} passed, {len(failed)} failed", highlight=False)
    raise typer.Exit(1 if failed else 0)


if __name__ == "__main__":
    app()
