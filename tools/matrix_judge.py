"""What a lane's outcomes mean: one verdict a lane, and the tables that show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from packaging.version import Version
from rich.table import Table

from tools.matrix_lanes import MAY_REFUSE, MUST_PACK, TRL_CANNOT, Lane

TOLERANCE = 1e-4  # on the loss, absolute, and on each parameter's gradient, relative
OK, CANNOT, APART, FAILS = "ok", "TRL cannot", "not together", "fails"
MARKS = {OK: "✓", CANNOT: "–", APART: "·", FAILS: "✗"}


@dataclass
class Verdict:
    """One lane: what came of it and why."""

    lane: Lane
    status: str
    reasons: list[str] = field(default_factory=list)
    runs: list[dict] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def of(cls, lane: Lane, row: dict) -> Verdict:
        """Reads what `row` wrote."""
        return cls(lane, *(row[name] for name in ("status", "reasons", "runs", "versions", "seconds")))

    def row(self) -> dict:
        """Returns the verdict as plain data for JSON."""
        names = {"lane": self.lane.name, "trl": self.lane.trl, "transformers": self.lane.transformers}
        rest = {"status": self.status, "reasons": self.reasons, "seconds": round(self.seconds, 1)}
        return {**names, **rest, "versions": self.versions, "runs": self.runs}


def difference(outcome: dict) -> float:
    """The worst difference of a run that finished."""
    return max(outcome["loss"], outcome["gradient"], outcome["evaluation"] or 0.0)


def said(outcome: dict | None) -> str:
    """Puts one outcome in a few words for a table cell."""
    if outcome is None:
        return "not run"
    if outcome["error"]:
        return "raises " + outcome["error"].split(":")[0]
    how = "packed" if outcome["packed"] else "padded"
    if difference(outcome) <= TOLERANCE:
        return f"{how}, {difference(outcome):.0e}"
    parts = [("loss", outcome["loss"]), ("gradient", outcome["gradient"]), ("eval", outcome["evaluation"])]
    return f"{how}, WRONG: " + ", ".join(f"{name} {value:.2g}" for name, value in parts if value is not None)


def judge(lane: Lane, result: dict, stock_only: bool = False) -> Verdict:
    """Turns what the child printed into a verdict.

    A lane that TRL cannot train in is told by the table of known failures; any other error with the patch is a failure,
    even if stock TRL raises the same.
    """
    verdict = Verdict(lane, OK, runs=result["runs"], versions=result["versions"])
    where, why = TRL_CANNOT.get(lane.trl, ("", ""))
    for run in result["runs"]:
        stock, patched = run["stock"], run.get("patched", run["stock"])
        same = (stock["error"], stock["where"]) == (patched["error"], patched["where"])
        if where and stock["error"] and same and stock["where"].endswith(f":{where}"):
            verdict.status, verdict.reasons = CANNOT, [f"{why} ({stock['error']} in {stock['where']})"]
        elif not stock_only:
            verdict.reasons += [f"{label(run)}: {text}" for text in _complaints(run)]
    if not result["runs"]:
        verdict.reasons.append("no family of this lane exists in this transformers")
    if verdict.reasons and verdict.status != CANNOT:
        verdict.status = FAILS
    return verdict


def label(run: dict) -> str:
    """Names a run in a table."""
    return run["family"] if run["scenario"] == "packing" else f"{run['family']}, {run['scenario']}"


def _complaints(run: dict) -> list[str]:
    outcome, refusable = run["patched"], run["scenario"] in MAY_REFUSE
    if outcome["error"]:
        refused = outcome["error"].startswith("PackingRefusedError")
        return [] if refused and refusable else [f"{outcome['error']} (in {outcome['where']})"]
    found = [] if difference(outcome) <= TOLERANCE else [said(outcome)]
    if not outcome["packed"] and run["family"] in MUST_PACK and not refusable:
        # The log says a reason once a process, so only the first of several runs may have it.
        found.append(": ".join(["trained padded, but this family must pack", *outcome["notes"]]))
    return found


def table(verdicts: list[Verdict]) -> Table:
    """Lays the verdicts out for the terminal, a row a run."""
    shown = Table("lane", "", "trained", "stock", "patched", "s", title="Version matrix")
    colours = {OK: "green", CANNOT: "yellow", APART: "dim", FAILS: "red"}
    for verdict in verdicts:
        mark = f"[{colours[verdict.status]}]{MARKS[verdict.status]} {verdict.status}"
        rows = [(label(run), said(run["stock"]), said(run.get("patched"))) for run in verdict.runs]
        for index, cells in enumerate(rows or [("", "", "; ".join(verdict.reasons))]):
            first = (verdict.lane.name, mark) if index == 0 else ("", "")
            shown.add_row(*first, *cells, f"{verdict.seconds:.0f}" if index == 0 else "")
    return shown


def _ordered(versions: set[str]) -> list[str]:
    return sorted(versions, key=Version)


def markdown(verdicts: list[Verdict]) -> str:
    """Writes the result as Markdown: a grid of TRL by transformers, then every run."""
    columns = _ordered({verdict.lane.transformers for verdict in verdicts})
    marks: dict[tuple[str, str], str] = {}
    for verdict in verdicts:
        cell = (verdict.lane.trl, verdict.lane.transformers)
        beside = "".join(f" with {package}" for package, _ in verdict.lane.beside)
        marks[cell] = ", ".join(filter(None, [marks.get(cell), MARKS[verdict.status] + beside]))
    lines = [
        "# Version matrix",
        "",
        "Each lane trains packed steps of tiny models through the real `SFTTrainer` and compares the loss and every",
        f"parameter's gradient with the same documents run one at a time. {MARKS[OK]} both within {TOLERANCE:g};",
        f"{MARKS[CANNOT]} TRL itself cannot train there; {MARKS[APART]} the releases do not install together;",
        f"{MARKS[FAILS]} failed. The number is the worst difference. Written by `python -m tools.matrix`.",
        "",
        "| TRL | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for trl in _ordered({verdict.lane.trl for verdict in verdicts}):
        lines.append(f"| {trl} | " + " | ".join(marks.get((trl, column), "") for column in columns) + " |")
    lines += ["", "| lane | trained | stock | patched |", "|---|---|---|---|"]
    for verdict in verdicts:
        lines += [
            f"| {verdict.lane.name} | {label(run)} | {said(run['stock'])} | {said(run.get('patched'))} |"
            for run in verdict.runs
        ]
    reasons = [f"- {v.lane.name}: {v.status}: {reason}" for v in verdicts for reason in v.reasons]
    return "\n".join([*lines, *(["", "## Reasons", "", *reasons] if reasons else [])]) + "\n"
