"""The picture of a verification: where along each document a difference sits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replacements.packing.verification.report import Verification

# Okabe and Ito's palette: apart for every kind of colour vision.
_SERIES = (("stock", "#D55E00"), ("patched", "#0072B2"), ("floor", "#666666"))
#: Differences of exactly zero are drawn here: a logarithmic axis has no zero.
_ZERO = 1e-8


def draw(found: Verification, path: Any) -> None:
    """Writes the picture as PNG: a faint line for each document, a strong one for the largest at each token."""
    # Made without pyplot: no display, no global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = {"floor": "alone, another batch shape", "stock": "packed, stock", "patched": "packed, patched"}
    for name, colour in _SERIES:
        # The first document of a row has nothing in front of it that could leak.
        runs = [getattr(d, name) for d in found.documents if d.place > 0 or name == "floor"]
        lines = [[max(value, _ZERO) for value in run.along] for run in runs if run is not None]
        for line in lines:
            axes.plot(range(1, len(line) + 1), line, color=colour, alpha=0.12, linewidth=0.7)
        largest = [max(line[i] for line in lines if i < len(line)) for i in range(max(map(len, lines), default=0))]
        axes.plot(range(1, len(largest) + 1), largest, color=colour, linewidth=1.6, label=names[name])
    axes.set_yscale("log")
    axes.set_xlabel("token of the document")
    axes.set_ylabel("largest |Δ log-prob| against alone (nats)")
    axes.set_title(f"{found.model}: {len(found.documents)} documents, packed against alone", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False)
    figure.savefig(path)
