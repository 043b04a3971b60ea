"""``patcher check``: is this model safe to pack here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.cli import terminal, upstream
from patcher.cli.errors import NO, OK, CliError

if TYPE_CHECKING:
    from replacements.packing.checking import Report


def run(model: str, *, weights: bool, trust_remote_code: bool, as_json: bool) -> int:
    """Check a model and print what was found; returns the exit code: 0 pack, 1 pad."""
    upstream.hush()
    with terminal.err().status(f"checking {model}"):
        from replacements.packing.checking import CannotCheckError, check

        try:
            report = check(model, weights=weights, trust_remote_code=trust_remote_code)
        except CannotCheckError as error:
            raise CliError(error.message, error.remedy) from error
    if as_json:
        terminal.print_json(report.to_dict())
    else:
        _show(report)
    return OK if report.packs else NO


def _show(report: Report) -> None:
    console = terminal.out()
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    console.print(
        f"{report.built}, {report.layers} layers; run with {report.weights} weights on {report.device}; {versions}\n",
        markup=False,
    )
    console.print(report.sentence, style="green" if report.packs else "yellow", markup=False)
    if report.kinds:
        console.print(_table(report))
    for backend in report.backends:
        console.print(f"{backend.op}: {backend.backend} ({backend.detail})", markup=False)
    if report.install:
        console.print(f"Faster on a GPU: pip install {' '.join(report.install)}", markup=False)
    for note in report.notes:
        console.print(note, markup=False)


def _table(report: Report) -> object:
    from rich.table import Table

    from replacements.packing.checking.report import patched_in_words, stock_in_words

    table = Table(box=None, padding=(0, 2, 0, 0), caption_justify="left")
    table.add_column("layers", justify="right")
    table.add_column("kind", no_wrap=True)
    table.add_column("stock", no_wrap=True)
    table.add_column("patched")
    for kind in report.kinds:
        table.add_row(str(kind.count or ""), kind.name, stock_in_words(kind), patched_in_words(kind, report))
    if any(False in kind.isolated for kind in report.kinds):
        table.caption = "leaks: by this share of its size a layer's output moves when the document before is another"
    return table
