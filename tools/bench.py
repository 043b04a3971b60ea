"""Speed and memory: transformers' fallback, one scan per document, the torch operations, accelerated kernels.

    python -m tools.bench                              the operations on the CPU
    python -m tools.bench --device cuda --dtype bfloat16 --heads 16 --width 128 --tokens 8192 --documents 29,99

Every ratio compares medians that were taken in turns in one run.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from replacements.kernels import backends
from replacements.kernels.segments import Segments
from tools import bench_check, bench_idle, bench_model, bench_probe, bench_profile
from tools.bench_cases import APART, CASES, NATIVE, OURS, STOCK, documents
from tools.bench_measure import Figures, measure
from tools.bench_report import Report, compared, facts, listed
from tools.bench_triton import few_configurations

console = Console(stderr=True)
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

GROWTH = (2048, 16384, 65536)
#: How many times shorter the row is on which every way is taken: some take minutes on the whole.
SHORT = 8
#: Documents above which a row does not wait for one scan each.
_MANY = 100
_PACKAGES = ("torch", "transformers", "triton", "flash-linear-attention", "causal-conv1d", "mamba-ssm", "tilelang")


@dataclass
class Bench:
    """What is measured and what came of it."""

    device: torch.device
    dtype: torch.dtype
    heads: int
    width: int
    tokens: int
    counts: list[int]
    ops: list[str]
    repeats: int
    slow: bool = True
    configurations: int | None = None
    reports: list[Report] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def machine(self) -> dict[str, Any]:
        """What it is measured on."""
        known = {}
        for package in _PACKAGES:
            try:
                known[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else platform.machine()
        known |= {} if self.configurations is None else {"configurations of each Triton kernel": self.configurations}
        return {"device": name, "threads": torch.get_num_threads(), "python": platform.python_version(), **known}

    def keep(self, name: str, report: Report, figures: Any) -> None:
        """Adds a section's table and numbers."""
        self.reports.append(report)
        self.figures[name] = figures

    @property
    def shape(self) -> str:
        """The operations' shape in words."""
        return f"{self.heads} heads of {self.width}, {str(self.dtype).removeprefix('torch.')}, {self.device.type}"

    def operations(
        self, op: str, tokens: int, count: int, *, leave_out: Collection[str] = (), heads: int | None = None
    ) -> dict[str, Figures]:
        """One operation on a row of `count` documents, in every way but some."""
        case, segments = CASES[op], Segments(documents(tokens, count))
        given = case.arguments(heads or self.heads, self.width, tokens, self.device, self.dtype)
        ways = case.ways(given, segments)
        steps = {n: bench_profile.step_of(way, given, segments) for n, way in ways.items() if n not in leave_out}
        return measure(steps, self.device, self.repeats)


def check(bench: Bench) -> None:
    """Operations and backends against one token at a time in float64, and the backends' states."""
    on_cpu = bench.device.type == "cpu"
    dtypes = (torch.float32,) if on_cpu else (torch.float32, torch.bfloat16)
    # On a GPU at the shape that is timed, for which the kernels have to be compiled anyhow.
    errors = bench_check.check(bench.device, *((2, 64) if on_cpu else (bench.heads, bench.width)), dtypes)
    rows = [(e.op, e.way, e.dtype, e.output, e.gradient, e.worst) for e in errors]
    columns = ("op", "way", "dtype", "output", "worst gradient", "of")
    note = "Relative error in the Euclidean norm, against float64, one token at a time."
    bench.keep("check", listed("Right", columns, rows, note), [asdict(e) for e in errors])
    found = backends.states(bench.device)
    rows = [(state.name, state.state, state.detail) for state in found]
    bench.keep("backends", listed("Backends", ("backend", "state", "detail"), rows), [asdict(s) for s in found])


def ops(bench: Bench) -> None:
    """Every operation in every way on a short row, and at the row's documents in the ways that a row can wait for."""
    short, count = bench.tokens // SHORT, bench.counts[0]
    in_short = {op: bench.operations(op, max(short, count), count) for op in bench.ops}
    measured = {}
    for op, ways in in_short.items():
        known: dict[str, Figures] = {}
        if STOCK in ways and ways[STOCK].once:  # its time may grow with the square of the row
            known[f"{STOCK}, {short} tokens"] = ways[STOCK]
        for documents_of_row in bench.counts:
            leave_out = {STOCK} if known else set()
            if ways[APART].once or documents_of_row > _MANY:
                leave_out.add(APART)
            taken = known | bench.operations(op, bench.tokens, documents_of_row, leave_out=leave_out)
            measured[f"{op}, {documents_of_row} documents"] = taken
            # The fallback does not look at the documents: where it took one turn, that is for all of them.
            known |= {name: figures for name, figures in taken.items() if name == STOCK and figures.once}
    note = f"Ratios are to “{STOCK}”: below 1 is faster or smaller. A fallback of fewer tokens would take longer yet."
    bench.keep(
        "ops", compared(f"Operations: {bench.tokens} tokens, {bench.shape}", measured, STOCK, note), _rows(measured)
    )
    named = {f"{op}, {count} documents": ways for op, ways in in_short.items()}
    title = f"One scan per document: {max(short, count)} tokens, {bench.shape}"
    bench.keep("apart", compared(title, named, APART), _rows(named))


def growth(bench: Bench) -> None:
    """The torch operations on longer rows: of one document, and of as many as the other sections have."""
    rows, kept, heads = [], {}, max(1, bench.heads // 4)
    for op in bench.ops:
        for count in (1, *bench.counts):
            for tokens in GROWTH:
                taken = bench.operations(op, tokens, count, leave_out={STOCK, APART}, heads=heads)[OURS]
                kept[f"{op}, {count} documents, {tokens}"] = taken.row()
                per_token = (taken.total / tokens * 1e6, taken.memory / tokens / 1024)
                rows.append((op, count, tokens, taken.total * 1e3, *per_token))
    columns = ("op", "documents", "tokens", "ms", "µs a token", "KiB a token")
    title = f"Growth: {bench.shape.replace(str(bench.heads), str(heads), 1)}"
    bench.keep("growth", listed(title, columns, rows, "Linear if the last columns stay."), kept)


def model(bench: Bench) -> None:
    """A training step of a whole model, how far each way is from the documents alone, the probe."""
    settings = bench_model.SMALL if bench.device.type == "cpu" else bench_model.QWEN3_5
    built = bench_model.build(settings, bench.device, bench.dtype)
    name = _agreement(bench, built)
    measured = {
        f"{count} documents": bench_model.compare(
            built,
            documents(bench.tokens, count),
            bench.device,
            bench.repeats,
            slow=bench.slow,
            apart=bench.device.type == "cuda" or count == min(bench.counts),
        )
        for count in bench.counts
    }
    title = f"{name}: a training step on {bench.tokens} tokens"
    bench.keep("model", compared(title, measured, STOCK if bench.slow else OURS), _rows(measured))
    cost = bench_model.probe_cost(built, bench.device)
    bench.keep("probe", listed(f"{name}: the probe", ("", "seconds"), cost.items()), cost)


def _agreement(bench: Bench, built: torch.nn.Module, how: str = "") -> str:
    """How far each way is from the documents alone; returns what the model is called in titles."""
    name = f"Qwen3.5 text, {built.config.num_hidden_layers} layers, {str(bench.dtype).removeprefix('torch.')}"
    near = bench_model.agreement(built, documents(1024, 7), bench.device)
    title = f"{name}: largest difference of a log-probability to the documents alone{',' * bool(how)}{how}"
    bench.keep(f"agreement{how}", listed(title, ("", "nats"), near.items()), near)
    return name


def native(bench: Bench) -> None:
    """A training step of a whole model by kernels called by hand, and by ours over the same kernels."""
    built = bench_model.build(bench_model.QWEN3_5, bench.device, bench.dtype)
    name = _agreement(bench, built, " with kernels")
    measured = {
        f"{count} documents": bench_model.against_native(
            built, documents(bench.tokens, count), bench.device, bench.repeats
        )
        for count in bench.counts
    }
    measured = {group: ways for group, ways in measured.items() if ways is not None}
    if measured:
        title = f"{name}: a training step on {bench.tokens} tokens, {bench.repeats} rounds"
        note = (
            f"Ratios are to “{NATIVE}”, kernels called by hand with the boundaries; “{bench_model.AGAIN}” is the noise."
        )
        bench.keep("native", compared(title, measured, NATIVE, note), _rows(measured))


def guard(bench: Bench) -> None:
    """The probe on a model of about 100 million parameters: its seconds, and its share of a run."""
    taken = bench_probe.cost(bench_probe.SETTINGS, bench.device, bench.dtype, bench.tokens, 15, bench.repeats)
    title = f"The guard's probe: {taken.parameters / 1e6:.0f} M parameters, {bench.tokens} tokens a step"
    note = "At most 1 second and 1 % are allowed on two cores; seconds but for the first and the last row."
    bench.keep("guard", listed(title, ("", ""), bench_probe.rows(taken), note), asdict(taken))


def idle(bench: Bench) -> None:
    """The runtime on a model of attention alone, packing off."""
    rounds = bench_idle.ROUNDS * bench.repeats
    taken = bench_idle.cost(bench_idle.SETTINGS, bench_idle.TOKENS, bench.device, bench.dtype, rounds)
    title = f"Nothing to do: Llama of 4 layers, {bench_idle.TOKENS} tokens, one document, {rounds} rounds"
    bench.keep("idle", listed(title, ("", ""), bench_idle.rows(taken)), asdict(taken))


def profile(bench: Bench) -> None:
    """Launches and time of the gated delta rule, and the chunks it could be cut into; needs a GPU."""
    if bench.device.type != "cuda":
        return
    case = CASES["gated_delta_rule"]
    for count in bench.counts:
        lengths = documents(bench.tokens, count)
        given = case.arguments(bench.heads, bench.width, bench.tokens, bench.device, bench.dtype)
        way = case.ways(given, Segments(lengths))[OURS]
        taken = bench_profile.profile(bench_profile.step_of(way, given, Segments(lengths)))
        times = f"host {taken.host:.1f} ms, device {taken.device:.1f} ms, wall {taken.wall:.1f} ms"
        title = f"gated_delta_rule, {count} documents: {taken.launches} launches, {times}"
        bench.keep(f"profile {count}", listed(title, ("kernel", "count", "ms"), taken.kernels), asdict(taken))
        tried = bench_profile.sweep(
            "gated_delta_rule", bench.heads, bench.width, lengths, bench.device, bench.dtype, bench.repeats
        )
        report = compared(f"gated_delta_rule chunks, {count} documents", {str(count): tried}, "chosen")
        bench.keep(f"chunks {count}", report, _rows({str(count): tried}))


SECTIONS: dict[str, Callable[[Bench], None]] = {
    "check": check,
    "ops": ops,
    "growth": growth,
    "model": model,
    "native": native,
    "guard": guard,
    "idle": idle,
    "profile": profile,
}


def _rows(measured: dict[str, dict[str, Figures]]) -> dict[str, Any]:
    return {group: {way: figures.row() for way, figures in ways.items()} for group, ways in measured.items()}


def write(bench: Bench, folder: Path, stem: str) -> None:
    """Writes `stem`.md and `stem`.json."""
    folder.mkdir(parents=True, exist_ok=True)
    body = "\n".join(report.markdown() for report in bench.reports)
    head = facts(found := bench.machine())
    (folder / f"{stem}.md").write_text(f"# Benchmarks, {bench.device.type}\n\n{head}\n\n{body}", "utf-8")
    kept = {"machine": found, "tables": [asdict(report) for report in bench.reports], **bench.figures}
    (folder / f"{stem}.json").write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the operations' tensors and the model.")] = "float32",
    heads: Annotated[int, typer.Option(help="Heads of the operations.")] = 8,
    width: Annotated[int, typer.Option(help="Width of a head.")] = 64,
    tokens: Annotated[int, typer.Option(help="Tokens of a row.")] = 4096,
    counts: Annotated[str, typer.Option("--documents", help="Documents of a row.")] = "15,45,400",
    only: Annotated[str, typer.Option("--ops", help="Operations.")] = ",".join(CASES),
    sections: Annotated[str, typer.Option(help=f"Of {', '.join(SECTIONS)}.")] = "check,ops,growth,model",
    repeats: Annotated[int, typer.Option(help="Rounds; the medians of them count.")] = 3,
    slow: Annotated[bool, typer.Option(help="Models also by the stock fallback and document by document.")] = True,
    configurations: Annotated[
        int | None, typer.Option(help="Each Triton kernel tries so many; all if left out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write the tables and numbers to.")] = None,
    stem: Annotated[str, typer.Option(help="Name of the files, without their ending.")] = "bench",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON to stdout.")] = False,
) -> None:
    """Measures, prints tables, and writes them where asked."""
    where = torch.device(device, torch.cuda.current_device()) if device == "cuda" else torch.device(device)
    kind = getattr(torch, dtype)
    if configurations is not None:
        few_configurations(configurations)
    row = (heads, width, tokens, _numbers(counts))
    bench = Bench(where, kind, *row, only.split(","), repeats, slow, configurations)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        for section in sections.split(","):
            task = progress.add_task(section, total=1)
            SECTIONS[section](bench)
            progress.advance(task)
            if out is not None:  # after each section: a later one may fail
                write(bench, out, stem)
    if as_json:
        print(json.dumps({"machine": bench.machine(), **bench.figures}))
    else:
        for report in bench.reports:
            Console(width=None if sys.stdout.isatty() else 150).print(report.rich())


if __name__ == "__main__":
    app()
