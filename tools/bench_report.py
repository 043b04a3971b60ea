"""Tables of what `tools/bench.py` measured, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from tools.bench_measure import Figures

_MIB = 2**20


@dataclass
class Report:
    """A table: a title, the columns' names, the rows, and what to know when reading it."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    note: str = ""

    def rich(self) -> Table:
        """For a terminal."""
        table = Table(title=self.title, title_justify="left", caption=self.note or None, caption_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(column, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        """As Markdown."""
        lines = [f"### {self.title}", ""]
        lines += [f"| {' | '.join(row)} |" for row in (self.columns, ("---",) * len(self.columns), *self.rows)]
        return "\n".join([*lines, "", *([self.note, ""] if self.note else [])])


def compared(title: str, measured: dict[str, dict[str, Figures]], base: str, note: str = "") -> Report:
    """Groups of ways against one of them: times and memory, and each as a ratio to `base`."""
    report = Report(
        title,
        ("", "way", "forward ms", "backward ms", "both, ratio", "forward, ratio", "memory MiB", "memory, ratio"),
        note=note or f"Ratios are to “{base}”: below 1 is faster or smaller.",
    )
    for group, ways in measured.items():
        reference = next((figures for way, figures in ways.items() if f"{way}, ".startswith(f"{base}, ")), None)
        report.rows += [_row(group, way, figures, reference) for way, figures in ways.items()]
    return report


def _row(group: str, way: str, figures: Figures, base: Figures | None) -> tuple[str, ...]:
    def ratio(value: float, reference: float | None) -> str:
        return "–" if not reference else f"{value / reference:.3f}"

    return (
        group,
        way,
        f"{figures.forward * 1e3:.1f}",
        f"{figures.backward * 1e3:.1f}",
        ratio(figures.total, base and base.total),
        ratio(figures.forward, base and base.forward),
        f"{figures.memory / _MIB:.0f}",
        ratio(figures.memory, base and base.memory),
    )


def facts(machine: dict[str, Any]) -> str:
    """What it was measured on, in a line."""
    return ", ".join(f"{name} {value}" for name, value in machine.items())


def listed(title: str, columns: tuple[str, ...], rows: Iterable[Iterable[Any]], note: str = "") -> Report:
    """Any rows; floats in three digits."""
    return Report(title, columns, [tuple(_cell(value) for value in row) for row in rows], note)


def _cell(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
