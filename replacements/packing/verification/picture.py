"""The picture of a verification: where along each document a difference sits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replacements.packing.drawing import BLUE, GREY, ORANGE, ZERO, figure, finish

if TYPE_CHECKING:
    from replacements.packing.verification.report import Verification

_SERIES = (("stock", ORANGE), ("patched", BLUE), ("floor", GREY))


def draw(found: Verification, path: Any) -> None:
    """Writes the picture as PNG: a faint line for each document, a strong one for the largest at each token."""
    made, axes = figure(9, 4.5)
    names = {"floor": "alone, another batch shape", "stock": "packed, stock", "patched": "packed, patched"}
    for name, colour in _SERIES:
        # The first document of a row has nothing in front of it that could leak.
        runs = [getattr(d, name) for d in found.documents if d.place > 0 or name == "floor"]
        lines = [[max(value, ZERO) for value in run.along] for run in runs if run is not None]
        for line in lines:
            axes.plot(range(1, len(line) + 1), line, color=colour, alpha=0.12, linewidth=0.7)
        largest = [max(line[i] for line in lines if i < len(line)) for i in range(max(map(len, lines), default=0))]
        axes.plot(range(1, len(largest) + 1), largest, color=colour, linewidth=1.6, label=names[name])
    axes.set_yscale("log")
    axes.set_xlabel("token of the document")
    axes.set_ylabel("largest |Δ log-prob| against alone (nats)")
    axes.set_title(f"{found.model}: {len(found.documents)} documents, packed against alone", loc="left", fontsize=11)
    axes.legend(frameon=False)
    finish(made, path)
