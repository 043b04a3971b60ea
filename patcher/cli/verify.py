"""``patcher verify``: packed against alone, on the user's model and data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patcher.cli import terminal, upstream
from patcher.cli.errors import NO, OK, CliError

if TYPE_CHECKING:
    from rich.table import Table

    from replacements.packing.verification import Verification
    from replacements.packing.verification.report import Document

#: So many documents are shown, those that are furthest from themselves alone.
_SHOWN = 20


@dataclass(frozen=True)
class Settings:
    """What is verified; each field is the option of that name."""

    model: str
    data: Path
    tokenizer: str | None
    limit: int
    max_length: int
    gradients: bool
    trust_remote_code: bool


def run(settings: Settings, *, plot: Path | None, as_json: bool) -> int:
    """Verify, print and draw what was found; returns the exit code."""
    if plot is not None and not plot.parent.is_dir():
        raise CliError(f"there is no folder {plot.parent} for the picture", "mkdir, or a folder that is there")
    upstream.hush()
    from replacements.packing.checking import CannotCheckError

    try:
        found = _verified(settings)
    except CannotCheckError as error:
        raise CliError(error.message, error.remedy) from error
    if as_json:
        terminal.print_json(found.to_dict())
    else:
        _show(found)
    if plot is not None:
        _draw(found, plot)
    return OK if found.passed else NO


def _verified(settings: Settings) -> Verification:
    with terminal.progress() as progress:
        task = progress.add_task("loading", total=None)
        from replacements.packing.verification import read, verify

        documents = read(settings.data, _tokenizer(settings), settings.limit)

        def advance(done: int, of: int) -> None:
            progress.update(task, description="documents", completed=done, total=of)

        return verify(
            settings.model,
            documents,
            max_length=settings.max_length,
            gradients=settings.gradients,
            trust_remote_code=settings.trust_remote_code,
            progress=advance,
        )


def _tokenizer(settings: Settings) -> Any:
    """The tokenizer, or `None` if there is none: documents may be token ids."""
    from transformers import AutoTokenizer

    from replacements.packing.checking import rows, source

    with rows.quiet():  # the clearer error if there is no model at all
        found = source.find(settings.model, settings.trust_remote_code)
    if found.weights is None:
        raise CliError(f"{found.name} has no weights on this machine", f"patcher check {found.name}, which needs none")
    place = settings.tokenizer or found.weights
    try:
        return place and AutoTokenizer.from_pretrained(place, trust_remote_code=settings.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        if settings.tokenizer is None:
            return None
        raise CliError(f"there is no tokenizer in {place}", "--tokenizer FOLDER") from error


def _draw(found: Verification, path: Path) -> None:
    try:
        found.plot(path)
    except ImportError as error:
        raise CliError("no picture without matplotlib", "pip install matplotlib") from error
    terminal.err().print(f"written: {path}", markup=False)


def _show(found: Verification) -> None:
    console = terminal.out()
    console.print(found.sentence, style="green" if found.passed else "yellow", markup=False)
    console.print(_table(found))
    if len(found.documents) > _SHOWN:
        console.print(f"The {_SHOWN} documents that differ most; --json has all {len(found.documents)}.")
    for note in found.notes:
        console.print(note, markup=False)


def _table(found: Verification) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), caption_justify="left")
    for heading in ("row", "place", "tokens", "loss", "floor", "stock", "patched", "gradient"):
        table.add_column(heading, justify="right")
    table.caption = (
        "largest difference of a log-probability from the document alone, in nats; floor: in another batch shape; "
        "gradient: relative, stock and patched"
    )
    shown = sorted(found.documents, key=_furthest, reverse=True)[:_SHOWN]
    for document in sorted(shown, key=lambda d: (d.row, d.place)):
        table.add_row(*_cells(document))
    return table


def _cells(document: Document) -> list[str]:
    runs = (document.floor, document.stock, document.patched)
    gradients = [None if run is None else run.gradient for run in runs[1:]]
    return [
        str(document.row),
        str(document.place),
        str(document.tokens),
        "" if document.loss is None else f"{document.loss:.3f}",
        *("-" if run is None else f"{run.log_prob:.0e}" for run in runs),
        " ".join("-" if value is None else f"{value:.0e}" for value in gradients),
    ]


def _furthest(document: Document) -> float:
    return max((run.log_prob for run in (document.patched, document.stock) if run is not None), default=0.0)
