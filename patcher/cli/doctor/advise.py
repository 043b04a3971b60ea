"""Draws conclusions from an examination: what is wrong, what could be better, and the command that mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from patcher import _settings

if TYPE_CHECKING:
    from patcher.cli.doctor.examine import Examination, Library


@dataclass(frozen=True)
class Finding:
    """One conclusion.

    Attributes:
        problem: it keeps packed training from being right; else it is a remark.
        what: what was found.
        remedy: what to do, usually a command.
    """

    problem: bool
    what: str
    remedy: str


def advise(seen: Examination) -> list[Finding]:
    """All findings, problems first."""
    findings = [*_libraries(seen), *_patches(seen), *_variables(), *_foreign(seen), *_kernels(seen)]
    return sorted(findings, key=lambda finding: not finding.problem)


def _libraries(seen: Examination) -> Iterator[Finding]:
    for library in seen.libraries:
        wanted = f'pip install "{library.distribution}{library.wanted}"'
        if library.version is None:
            if library.wanted:
                yield Finding(True, f"{library.name} is not installed", wanted)
        elif not _fits(library):
            yield Finding(True, f"{library.name} {library.version} is not {library.wanted}", wanted)
    for module, reason in seen.import_errors.items():
        package = module.partition(".")[0]
        yield Finding(True, f"{module} cannot be imported: {reason}", f"pip install --upgrade {package}")


def _fits(library: Library) -> bool:
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion

    try:
        return SpecifierSet(library.wanted).contains(library.version, prereleases=True)
    except InvalidVersion:
        return True  # a build that cannot be placed is not called wrong


def _patches(seen: Examination) -> Iterator[Finding]:
    if seen.status.disabled:
        yield Finding(True, "the patcher is turned off by PATCHER_DISABLE", "unset PATCHER_DISABLE")
    for rewrite in seen.status.rewrites:
        if rewrite.state == "failed":
            yield Finding(
                True,
                f"{rewrite.target} could not be rewritten, see above",
                f"pip install --upgrade trl-patcher, or a {rewrite.package} that it knows",
            )
        elif rewrite.state in ("covered", "stuck"):
            yield Finding(
                True,
                f"another library put something over {rewrite.target}: {', '.join(rewrite.covered) or rewrite.reason}",
                "import patcher after that library",
            )
        elif rewrite.state in ("skipped", "left alone"):
            yield Finding(False, f"{rewrite.target} is {rewrite.state}: {_first(rewrite.reason)}", "patcher status")
        missed = [name for name, outcome in rewrite.edits if outcome == "missed"]
        if missed:
            yield Finding(False, f"{rewrite.target} lacks: {', '.join(missed)}", "pip install --upgrade trl-patcher")


def _variables() -> Iterator[Finding]:
    for name in _settings.VARIABLES:
        try:
            value = _settings.read(name)
        except _settings.SettingError as error:
            yield Finding(True, str(error), "set it to one of these, or unset it")
        else:
            if (name, value) == ("PATCHER_HYBRID_PACKING", "0"):
                yield Finding(False, f"{name}=0: hybrid models train padded", "unset it to pack them")


def _foreign(seen: Examination) -> Iterator[Finding]:
    for library in seen.foreign:
        yield Finding(
            False,
            f"{library.name} {library.version} is installed and replaces parts of TRL or of the models when imported",
            "run `patcher.status()` in the training script, after all imports",
        )


def _kernels(seen: Examination) -> Iterator[Finding]:
    for library in seen.kernels:
        if library.error:
            remedy = f"pip install --force-reinstall {library.distribution}, or uninstall it"
            yield Finding(False, f"{library.name} {library.version} cannot be imported: {library.error}", remedy)
    for backend, outcome in (seen.backends or {}).items():
        if outcome.startswith("failed"):
            yield Finding(False, f"{backend} {outcome}", "nothing, the torch op is used; see that package's notes")
    fla = next(library for library in seen.kernels if library.name == "fla")
    if seen.devices and fla.version is None:
        yield Finding(
            False,
            "no accelerated kernels for linear attention: the torch ops are right, and slower",
            f"pip install {fla.distribution}",
        )


def _first(reason: str) -> str:
    """What it is about and what is the matter, on one line."""
    return ": ".join(line.strip() for line in reason.strip().splitlines()[:2])
