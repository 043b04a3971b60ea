"""What ``patcher.status()`` returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from patcher._ledger import MEANING, Record


@dataclass(frozen=True)
class RewriteStatus:
    """One rewrite as it stands now.

    Attributes:
        name: name of the rewrite.
        target: ``module:qualified.name`` of the function.
        package: import name of the package.
        version: its version, or None before it is imported.
        state: ``waiting``, ``applied``, ``covered``, ``left alone``, ``skipped``, ``failed``, ``reverted``, ``stuck``.
        edits: each edit's name and the index of the anchor alternative, ``already there`` or ``missed``.
        places: where the rewritten function was put.
        covered: those of them that hold something else by now.
        outside: names in other packages that hold the original still.
        reason: why it is not applied, in full; of one that is, what to know of it, if anything.
    """

    name: str
    target: str
    package: str
    version: str | None
    state: str
    edits: tuple[tuple[str, int | str], ...]
    places: tuple[str, ...]
    covered: tuple[str, ...]
    outside: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        package = f"{self.package} {self.version}" if self.version else self.package
        lines = [f"{self.name}: {self.state} ({MEANING[self.state]})", f"  {package}, {self.target}"]
        if self.edits:
            lines.append("  edits: " + ", ".join(f"{name} ({_outcome(outcome)})" for name, outcome in self.edits))
        lines += [f"  covered: {place}" for place in self.covered]
        lines += [f"  still the original: {place}" for place in self.outside]
        if self.reason:
            lines += [f"  {line}" for line in self.reason.splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Status:
    """State of the patcher in this process.

    Attributes:
        version: version of trl-patcher.
        installed: whether rewrites are in place or waiting for their modules.
        disabled: whether ``PATCHER_DISABLE`` turned it off.
        rewrites: every rewrite it knows of here.
    """

    version: str
    installed: bool
    disabled: bool
    rewrites: tuple[RewriteStatus, ...]

    def to_dict(self) -> dict[str, object]:
        """The status as JSON-ready data."""
        return asdict(self)

    def __str__(self) -> str:
        state = "off (PATCHER_DISABLE)" if self.disabled else "installed" if self.installed else "not installed"
        return "\n".join([f"patcher {self.version}: {state}", *(str(rewrite) for rewrite in self.rewrites)])


def of(record: Record) -> RewriteStatus:
    """The status of one record."""
    rewrite = record.rewrite
    lost = [str(swap.place) for swap in record.swaps if record.state in ("applied", "stuck") and not swap.holds]
    return RewriteStatus(
        name=rewrite.name,
        target=rewrite.target,
        package=rewrite.package,
        version=record.version,
        state=record.seen_state,
        edits=tuple(record.edits),
        places=tuple(str(swap.place) for swap in record.swaps),
        covered=tuple(lost),
        outside=tuple(record.outside),
        reason=record.reason,
    )


def _outcome(outcome: int | str) -> str:
    return f"anchor {outcome}" if isinstance(outcome, int) else outcome
