"""What a lane's outcomes mean: one verdict a lane, and the tables that show it."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.table import Table

from tools.matrix_lanes import MUST_PACK, TRL_CANNOT, Lane

TOLERANCE = 1e-4  # on the loss, absolute, and on each parameter's gradient, relative
OK, CANNOT, APART, FAILS = "ok", "TRL cannot", "not together", "fails"
MARKS = {OK: "✓", CANNOT: "–", APART: "·", FAILS: "✗"}


@dataclass
class Verdict:
    """One lane: what came of it and why."""

    lane: Lane
    status: str
    reasons: list[str] = field(default_factory=list)
    families: dict[str, dict] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def row(self) -> dict:
        """Returns the verdict as plain data for JSON."""
        names = {"lane": self.lane.name, "trl": self.lane.trl, "transformers": self.lane.transformers}
        rest = {"status": self.status, "reasons": self.reasons, "seconds": round(self.seconds, 1)}
        return {**names, **rest, "versions": self.versions, "families": self.families}


def isolated(outcome: dict) -> bool:
    """Says whether a run that finished agrees with the documents apart."""
    return outcome["error"] is None and outcome["loss"] <= TOLERANCE and outcome["gradient"] <= TOLERANCE


def said(outcome: dict | None) -> str:
    """Puts one outcome in a few words for a table cell."""
    if outcome is None:
        return "not run"
    if outcome["error"]:
        return "raises " + outcome["error"].split(":")[0]
    how = "packed" if outcome["packed"] else "padded"
    if isolated(outcome):
        return f"{how}, {max(outcome['loss'], outcome['gradient']):.0e}"
    return f"LEAKS: loss {outcome['loss']:.2g}, gradient {outcome['gradient']:.2g}"


def judge(lane: Lane, result: dict, stock_only: bool = False) -> Verdict:
    """Turns what the child printed into a verdict.

    A lane that TRL cannot train in is told by the table of known reasons and by the same reason in both errors; any other
    error with the patch is a failure, even if stock TRL raises the same.
    """
    verdict = Verdict(lane, OK, families=result["families"], versions=result["versions"])
    cannot = TRL_CANNOT.get(lane.trl)
    for family, runs in result["families"].items():
        if cannot and all(cannot in (run["error"] or "") for run in runs.values()):
            verdict.status = CANNOT
            verdict.reasons = [runs["stock"]["error"]]
            continue
        if not stock_only:
            verdict.reasons += [f"{family}: {complaint}" for complaint in _complaints(family, runs["patched"])]
    if not result["families"]:
        verdict.reasons.append("no family of this lane exists in this transformers")
    if verdict.reasons and verdict.status != CANNOT:
        verdict.status = FAILS
    return verdict


def _complaints(family: str, outcome: dict) -> list[str]:
    if outcome["error"]:
        return [f"{outcome['error']} (in {outcome['where']})"]
    found = []
    if not isolated(outcome):
        found.append(said(outcome))
    if not outcome["packed"] and family in MUST_PACK:
        found.append("trained padded, but this family must pack")
    return found


def table(verdicts: list[Verdict]) -> Table:
    """Lays the verdicts out for the terminal, a row a lane and family."""
    shown = Table("lane", "", "family", "stock", "patched", "s", title="Version matrix")
    colours = {OK: "green", CANNOT: "yellow", APART: "dim", FAILS: "red"}
    for verdict in verdicts:
        mark = f"[{colours[verdict.status]}]{MARKS[verdict.status]} {verdict.status}"
        rows = [(family, said(runs["stock"]), said(runs.get("patched"))) for family, runs in verdict.families.items()]
        for index, cells in enumerate(rows or [("", "", "; ".join(verdict.reasons))]):
            first = (verdict.lane.name, mark) if index == 0 else ("", "")
            shown.add_row(*first, *cells, f"{verdict.seconds:.0f}" if index == 0 else "")
    return shown


def markdown(verdicts: list[Verdict]) -> str:
    """Writes the result as Markdown: a grid of TRL by transformers, then every lane in full."""
    columns = sorted({v.lane.transformers for v in verdicts}, key=lambda text: [int(part) for part in text.split(".")])
    rows = sorted({v.lane.trl for v in verdicts}, key=lambda text: [int(part) for part in text.split(".")])
    marks = {(v.lane.trl, v.lane.transformers): MARKS[v.status] for v in verdicts}
    lines = [
        "# Version matrix",
        "",
        "Each lane trains packed steps of tiny models through the real `SFTTrainer` and compares the loss and every",
        f"parameter's gradient with the same documents run one at a time. {MARKS[OK]} both within {TOLERANCE:g};",
        f"{MARKS[CANNOT]} TRL itself cannot train there; {MARKS[APART]} the releases do not install together;",
        f"{MARKS[FAILS]} failed. Written by `python -m tools.matrix`.",
        "",
        "| TRL | " + " | ".join(columns) + " |",
        "|---|" + "---|" * len(columns),
        *(f"| {trl} | " + " | ".join(marks.get((trl, column), "") for column in columns) + " |" for trl in rows),
        "",
        "| lane | family | stock | patched |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        lines += [
            f"| {verdict.lane.name} | {family} | {said(runs['stock'])} | {said(runs.get('patched'))} |"
            for family, runs in verdict.families.items()
        ]
    reasons = [f"- {v.lane.name}: {v.status}: {reason}" for v in verdicts for reason in v.reasons]
    return "\n".join([*lines, *(["", "## Reasons", "", *reasons] if reasons else [])]) + "\n"
