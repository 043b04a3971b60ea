"""The drift scan's tables: releases that read alike share a row, misses are shown with their nearest candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from rich.markup import escape
from rich.table import Table

from tools.drift_scan import ABSENT, FOUND, LOST, MISS, Finding

_COLOURS = {FOUND: "green", ABSENT: "dim", LOST: "yellow", MISS: "bold red"}


def grouped(findings: Iterable[Finding]) -> dict[str, dict[str, dict[str, Finding]]]:
    """Returns package → version → column → finding, in the order of the findings."""
    packages: dict[str, dict[str, dict[str, Finding]]] = {}
    for finding in findings:
        packages.setdefault(finding.package, {}).setdefault(finding.version, {})[finding.column] = finding
    return packages


def rows(versions: dict[str, dict[str, Finding]], every: bool) -> list[tuple[str, dict[str, Finding]]]:
    """Returns labelled rows; unless `every`, neighbouring releases with the same outcomes are one row."""
    if every:
        return list(versions.items())

    def alike(item: tuple[str, dict[str, Finding]]) -> list[tuple[str, str, str]]:
        return [(name, finding.status, finding.outcome) for name, finding in item[1].items()]

    merged = []
    for _, run in itertools.groupby(versions.items(), key=alike):
        members = list(run)
        first, last = members[0][0], members[-1][0]
        label = first if len(members) == 1 else f"{first} – {last} ({len(members)})"
        merged.append((label, members[0][1]))
    return merged


def _words(finding: Finding) -> str:
    return finding.outcome if finding.status in (FOUND, ABSENT) else f"{finding.status}: {finding.outcome}"


def _columns(versions: dict[str, dict[str, Finding]]) -> list[str]:
    return list(dict.fromkeys(name for found in versions.values() for name in found))


def tables(findings: Iterable[Finding], every: bool = False) -> list[Table]:
    """Makes one table a package: releases down, anchors across (families turned round, since they are many)."""
    made = []
    for package, versions in grouped(findings).items():
        body = rows(versions, every)
        names = _columns(versions)
        turned = len(names) > len(body)
        title = f"{package}: {len(versions)} releases"
        shown = Table("" if turned else "release", *([label for label, _ in body] if turned else names), title=title)
        if turned:
            for name in names:
                shown.add_row(name, *(_cell(found.get(name)) for _, found in body))
        else:
            for label, found in body:
                shown.add_row(label, *(_cell(found.get(name)) for name in names))
        made.append(shown)
    return made


def _cell(finding: Finding | None) -> str:
    return "" if finding is None else f"[{_COLOURS[finding.status]}]{escape(_words(finding))}"


def details(findings: Iterable[Finding]) -> list[str]:
    """Returns the text of every miss."""
    return [f"{f.package} {f.version}, {f.column}:\n{f.detail}" for f in findings if f.status == MISS]


def markdown(findings: list[Finding]) -> str:
    """Writes the tables as Markdown."""
    lines = ["# Drift scan", "", "Every anchor of every rewrite, matched in the source of published wheels; and for"]
    lines += ["transformers, how each family's mixers reach their ops. Written by `python -m tools.drift`.", ""]
    for package, versions in grouped(findings).items():
        body, names = rows(versions, every=False), _columns(versions)
        lines += [f"## {package}: {len(versions)} releases", "", "| | " + " | ".join(label for label, _ in body) + " |"]
        lines.append("|---|" + "---|" * len(body))
        for name in names:
            cells = (_words(found[name]) if name in found else "" for _, found in body)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        lines.append("")
    missed = details(findings)
    if missed:
        lines += ["## Misses", "", *(f"```\n{text}\n```\n" for text in missed)]
    return "\n".join(lines)
