"""What the pictures have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: apart for every kind of colour vision.
BLUE, ORANGE, GREY, PALE = "#0072B2", "#D55E00", "#666666", "#dddddd"
#: Differences of exactly zero are drawn here: a logarithmic axis has no zero.
ZERO = 1e-8


def figure(width: float, height: float, **layout: Any) -> tuple[Figure, Any]:
    """A figure of so many inches and its axes; `layout` is that of `Figure.subplots`."""
    # Made without pyplot: no display, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    made = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(made)
    return made, made.subplots(**layout)


def finish(made: Figure, path: str | Path) -> None:
    """Takes away from every axes what is no data, and writes the picture."""
    for axes in made.axes:
        _plain(axes)
    made.savefig(path)


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)
