"""Matches the rewrites against the source in a wheel: one finding for every edit, nothing imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from patcher.rewriting import ALREADY, MISSED, AnchorError, Edit, PatchError, Rewrite, edit_source
from tools import _wheels

FOUND, ABSENT, LOST, MISS = "found", "absent", "lost", "MISS"


@dataclass(frozen=True)
class Finding:
    """What one release has for one thing that the project relies on.

    Attributes:
        package: distribution name.
        version: its release.
        column: what was looked for: rewrite and edit, or family and op.
        status: `found`; `absent` (the release lacks the whole feature, as some may); `lost` (an optional edit has no
            place); `MISS` (a required one has none).
        outcome: how it was found, in a word or two.
        detail: for a miss, the error with the nearest candidates and their diffs.
        candidates: the nearest candidates as data.
    """

    package: str
    version: str
    column: str
    status: str
    outcome: str
    detail: str = ""
    candidates: list[dict] = field(default_factory=list)


def scan(package: str, version: str, wheel: Path, rewrites: Iterable[Rewrite]) -> list[Finding]:
    """Matches every edit of every rewrite of a package in one of its wheels."""
    found = []
    for rewrite in rewrites:
        source = _wheels.read(wheel, rewrite.module)
        if source is None:
            detail = f"{wheel.name} has no module {rewrite.module}"
            found += [
                Finding(package, version, column(rewrite, edit), MISS, "no module", detail) for edit in rewrite.edits
            ]
        else:
            found += _scan_once(source, rewrite, version)
    return found


_read: dict[tuple[int, str], tuple[Rewrite, list[Finding]]] = {}  # the rewrite is kept, so that its id stays its own


def _scan_once(source: str, rewrite: Rewrite, version: str) -> list[Finding]:
    """Does what `scan_source` does; neighbouring releases often hold the very same module, which is then read once."""
    key = (id(rewrite), source)
    if key not in _read:
        found = scan_source(source, rewrite, version)
        if any(finding.status == MISS for finding in found):
            return found  # its text names the version
        _read[key] = (rewrite, found)
    return [dataclasses.replace(finding, version=version) for finding in _read[key][1]]


def column(rewrite: Rewrite, edit: Edit) -> str:
    """Names an edit in a table."""
    return f"{rewrite.name}: {edit.name}"


def scan_source(source: str, rewrite: Rewrite, version: str) -> list[Finding]:
    """Matches the edits of one rewrite in the text of its module."""
    try:
        matched = edit_source(source, rewrite, version=version).matched
    except PatchError as error:
        if len(rewrite.edits) == 1:
            return [_miss(rewrite, rewrite.edits[0], version, error)]
        # All or none: to know about each edit, each is asked alone.
        return [
            finding
            for edit in rewrite.edits
            for finding in scan_source(source, dataclasses.replace(rewrite, edits=(edit,)), version)
        ]
    edits = {edit.name: edit for edit in rewrite.edits}
    return [_finding(rewrite, edits[name], version, outcome) for name, outcome in matched]


def _finding(rewrite: Rewrite, edit: Edit, version: str, outcome: int | str) -> Finding:
    name = column(rewrite, edit)
    if outcome == MISSED:
        return Finding(rewrite.package, version, name, LOST, "no place", edit.lost)
    if outcome == ALREADY:
        return Finding(rewrite.package, version, name, FOUND, ALREADY)
    text = f"anchor {outcome}" if edit.anchors else edit.action
    return Finding(rewrite.package, version, name, FOUND, text)


def _miss(rewrite: Rewrite, edit: Edit, version: str, error: PatchError) -> Finding:
    near = [candidate.to_dict() for candidate in error.candidates] if isinstance(error, AnchorError) else []
    # An optional edit fails only when its anchor is ambiguous, which no release may be either.
    return Finding(rewrite.package, version, column(rewrite, edit), MISS, type(error).__name__, str(error), near)
