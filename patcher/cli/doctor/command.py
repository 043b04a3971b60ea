"""Prints what the doctor saw and thinks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from patcher.cli import terminal
from patcher.cli.doctor.advise import Finding, advise
from patcher.cli.doctor.examine import Examination, Library, examine
from patcher.cli.errors import NO, OK

if TYPE_CHECKING:
    from collections.abc import Iterable


def run(*, as_json: bool) -> int:
    """Examine, print, and return the exit code: 1 if there is a problem."""
    seen = examine()
    findings = advise(seen)
    if as_json:
        terminal.print_json(_as_json(seen, findings))
    else:
        _show(seen, findings)
    return NO if any(finding.problem for finding in findings) else OK


def _as_json(seen: Examination, findings: list[Finding]) -> dict:
    return {
        "python": seen.python,
        "devices": seen.devices,
        "libraries": [asdict(library) for library in seen.libraries],
        "kernels": [asdict(library) for library in seen.kernels],
        "foreign": [asdict(library) for library in seen.foreign],
        "status": seen.status.to_dict(),
        "import_errors": seen.import_errors,
        "settings": seen.settings,
        "backends": seen.backends,
        "findings": [asdict(finding) for finding in findings],
    }


def _show(seen: Examination, findings: list[Finding]) -> None:
    console = terminal.out()

    def section(title: str, lines: Iterable[str]) -> None:
        console.print(f"\n[bold]{title}[/bold]")
        for line in lines:
            console.print(f"  {line}", markup=False)

    console.print(f"[bold]patcher {seen.status.version}[/bold], python {seen.python}")
    section("Libraries", [_library(library) for library in seen.libraries])
    section("Accelerators", seen.devices or ["none, torch computes on the CPU"])
    section("Kernels", [_library(library) for library in seen.kernels])
    if seen.backends is not None:
        section("Backends", [f"{name}: {outcome}" for name, outcome in seen.backends.items()])
    section("Rewrites", [line for rewrite in seen.status.rewrites for line in str(rewrite).splitlines()] or ["none"])
    if seen.foreign:
        section("Others that patch", [_library(library) for library in seen.foreign])
    if seen.settings:
        section("Settings", [f"{name}={value}" for name, value in seen.settings.items()])
    console.print()
    if not findings:
        console.print("Nothing to mend.")
    for finding in findings:
        style, word = ("bold red", "problem") if finding.problem else ("yellow", "remark")
        console.print(f"[{style}]{word}[/{style}]", end=" ")
        console.print(f"{finding.what}\n        -> {finding.remedy}", markup=False)


def _library(library: Library) -> str:
    if library.version is None:
        return f"{library.name}: not installed"
    wanted = f" (wanted {library.wanted})" if library.wanted else ""
    error = f", cannot be imported: {library.error}" if library.error else ""
    return f"{library.name} {library.version}{wanted}{error}"
