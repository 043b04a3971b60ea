"""The demo's picture: the loss of both runs, and the leak of every document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from patcher.cli.demo.settings import LIMIT
from patcher.cli.errors import CliError
from replacements.packing.drawing import BLUE, GREY, ORANGE, PALE, ZERO, figure, finish

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from patcher.cli.demo.report import Report


def require_matplotlib() -> None:
    """Raise if matplotlib is missing.

    Raises:
        CliError: it is, with the command that installs it.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise CliError("no picture without matplotlib", "pip install matplotlib") from None


def draw(report: Report, path: Path) -> None:
    """Write the picture as PNG."""
    made, (left, right) = figure(11, 4.2, ncols=2, width_ratios=(1, 1.15))
    _losses(left, report)
    _leaks(right, report)
    finish(made, path)


def _losses(axes: Axes, report: Report) -> None:
    # The curves coincide where packing is right: the wide one shows on both sides of the narrow one.
    for name, run, colour, width in (
        ("padded", report.padded, ORANGE, 5.0),
        ("packed, patched", report.packed, BLUE, 1.4),
    ):
        thousands = [tokens / 1000 for tokens in run.curve.tokens]
        label = f"{name}: {run.curve.tokens_per_second:,.0f} real tokens/s"
        axes.plot(thousands, run.curve.loss, color=colour, linewidth=width, label=label, alpha=0.55 if width > 2 else 1)
    axes.set_title(
        f"Packed {report.speed_up:.1f}x as fast; losses of a step within {report.largest_loss_gap:.0e}",
        loc="left",
        fontsize=11,
    )
    axes.set_xlabel("real tokens seen (thousands)")
    axes.set_ylabel("training loss (nats per token)")
    axes.legend(frameon=False)


def _leaks(axes: Axes, report: Report) -> None:
    series = (
        ("stock, position_ids only", report.stock_positions, ORANGE, "s"),
        ("stock, TRL's batch", report.stock, GREY, "^"),
        ("patched, TRL's batch", report.patched, BLUE, "o"),
    )
    for name, outcome, colour, marker in series:
        if outcome.delta is None:
            # A proxy without points keeps the refusal in the legend.
            axes.plot([], [], marker, color=colour, label=f"{name}: refused ({outcome.error.split(':')[0]})")
            continue
        flat = [max(value, ZERO) for row in outcome.delta for value in row]
        axes.plot(range(1, len(flat) + 1), flat, marker, color=colour, markersize=4.5, alpha=0.85, label=name)
    _separate_rows(axes, report.patched.delta or report.stock_positions.delta)
    axes.axhline(LIMIT, color=GREY, linestyle="--", linewidth=1, label=f"limit, {LIMIT:.0e}")
    axes.set_yscale("log")
    axes.set_ylim(ZERO / 2, 300)
    axes.set_title("How far its neighbours move each document", loc="left", fontsize=11)
    axes.set_xlabel("document, in the order it is packed (bars part the rows)")
    axes.set_ylabel("largest |Δ log-prob|, packed against alone")
    axes.legend(frameon=False, loc="upper center", ncols=2, fontsize=8.5)


def _separate_rows(axes: Axes, rows: list[list[float]] | None) -> None:
    edge = 0.5
    for row in (rows or [])[:-1]:
        edge += len(row)
        axes.axvline(edge, color=PALE, linewidth=0.8)
