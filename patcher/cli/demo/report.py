"""What the demo found, as a table for people and as JSON for machines."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from patcher.cli.demo.settings import LIMIT

if TYPE_CHECKING:
    from rich.table import Table

    from patcher.cli.demo.isolation import Outcome
    from patcher.cli.demo.training import Curve


FAIRNESS = (
    "Both runs start from the same weights and see the same documents in the same step: as packed rows, or as a batch "
    "padded to the longest."
)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        curve: loss and clock against real tokens.
        held_out: loss on the held-out documents, each alone, nats per token.
    """

    curve: Curve
    held_out: float


@dataclass(frozen=True)
class Report:
    """Everything the demo measured.

    Attributes:
        parameters: parameters of the model.
        documents: training documents.
        tokens: tokens in them.
        documents_a_step: mean number of documents in an optimizer step.
        stock: the trainer's own batch on the stock model.
        stock_positions: the same batch with position_ids only, on the stock model.
        patched: the trainer's own batch on the patched model.
        packed: the packed run.
        padded: the padded run.
        seconds: the whole demo.
    """

    parameters: int
    documents: int
    tokens: int
    documents_a_step: float
    stock: Outcome
    stock_positions: Outcome
    patched: Outcome
    packed: Run
    padded: Run
    seconds: float

    @property
    def isolated(self) -> bool:
        """Whether the patched model keeps the documents apart, to the limit."""
        largest = self.patched.largest
        return largest is not None and largest <= LIMIT  # False for not-a-number too

    @property
    def speed_up(self) -> float:
        """Real tokens per second, packed over padded."""
        return self.packed.curve.tokens_per_second / self.padded.curve.tokens_per_second

    @property
    def largest_loss_gap(self) -> float:
        """Largest difference between the runs in the training loss of a step, nats per token."""
        return max(abs(a - b) for a, b in zip(self.packed.curve.loss, self.padded.curve.loss, strict=True))

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "isolated": self.isolated,
            "limit": LIMIT,
            "speed_up": self.speed_up,
            "largest_loss_gap": self.largest_loss_gap,
            "model": {"parameters": self.parameters},
            "data": {"documents": self.documents, "tokens": self.tokens, "per_step": self.documents_a_step},
            "stock": _outcome(self.stock),
            "stock_position_ids_only": _outcome(self.stock_positions),
            "patched": _outcome(self.patched),
            "packed": _run(self.packed),
            "padded": _run(self.padded),
            "seconds": self.seconds,
        }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {"largest_delta_log_prob": outcome.largest, **asdict(outcome)}


def _run(run: Run) -> dict[str, Any]:
    return {
        "held_out_loss": run.held_out,
        "real_tokens": run.curve.tokens[-1],
        "real_tokens_per_second": run.curve.tokens_per_second,
        "curve": asdict(run.curve),
    }


def isolation_table(report: Report) -> Table:
    """Stock and patched, packed against alone."""
    from rich.table import Table

    table = Table(title="Packed against alone, largest |Δ log-prob|", title_justify="left", title_style="bold")
    table.add_column("batch")
    table.add_column("model")
    table.add_column("result", overflow="fold")
    table.add_row("as TRL makes it", "stock", _words(report.stock))
    table.add_row("position_ids only", "stock", _words(report.stock_positions))
    table.add_row("as TRL makes it", "patched", _words(report.patched))
    return table


def training_table(report: Report) -> Table:
    """The two runs side by side."""
    from rich.table import Table

    packed, padded = report.packed, report.padded
    table = Table(
        title="Training",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("")
    for name in ("padded", "packed"):
        table.add_column(name, justify="right")
    for label, value in (
        ("optimizer steps", lambda run: f"{len(run.curve.loss)}"),
        ("real tokens seen", lambda run: f"{run.curve.tokens[-1]:,}"),
        ("training loss, last quarter", lambda run: f"{last_quarter(run.curve.loss):.3f}"),
        ("loss on held-out documents, alone", lambda run: f"{run.held_out:.3f}"),
        ("real tokens per second", lambda run: f"{run.curve.tokens_per_second:,.0f}"),
    ):
        table.add_row(label, value(padded), value(packed))
    table.add_row("speed-up", "", f"{report.speed_up:.2f}x")
    table.add_row("largest difference in any step's loss", "", f"{report.largest_loss_gap:.1e}")
    return table


def last_quarter(loss: list[float]) -> float:
    """Mean of the last quarter of a curve."""
    tail = loss[-max(1, len(loss) // 4) :]
    return sum(tail) / len(tail)


def _words(outcome: Outcome) -> str:
    if outcome.error is not None:
        return outcome.error
    return f"{outcome.largest:.1e}, {'isolated' if outcome.largest <= LIMIT else 'leaks'}"
