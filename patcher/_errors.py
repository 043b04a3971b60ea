"""What the engine raises. Every error names the cause and what to do about it."""

from __future__ import annotations

TYPE_CHECKING = False  # typing would be a sixth of the time that `import patcher` takes
if TYPE_CHECKING:
    from patcher._diagnostics import Candidate

_UPGRADE = "Upgrade trl-patcher, or install a release of {package} that it knows"
_REMEDY = "Nothing was changed. {remedy}, or set PATCHER_DISABLE=1 to run without it."


class PatchError(Exception):
    """A rewrite could not be made, put in place or taken back.

    Attributes:
        remedy: what to do, where that is not to upgrade; a sentence without its full stop.
        target: ``module:qualified.name`` of the function; empty while it is not known.
        package: import name of the package that holds the function.
        version: version of that package, or None when unknown.
    """

    def __init__(self, message: str, *, remedy: str = ""):
        super().__init__(message)
        self.remedy = remedy
        self.target = self.package = ""
        self.version: str | None = None

    def locate(self, target: str, package: str, version: str | None) -> None:
        """Says which function of which release the error is about, unless that has been said."""
        if not self.target:
            self.target, self.package, self.version = target, package, version

    def __str__(self) -> str:
        message = super().__str__()
        if not self.target:
            return f"{message}. {self.remedy}" if self.remedy else message
        head = f"{self.package} {self.version}" if self.version else self.package
        remedy = _REMEDY.format(remedy=self.remedy or _UPGRADE.format(package=self.package))
        rows = [*message.splitlines(), remedy]
        return "\n".join([f"{head}: cannot rewrite {self.target}", *(f"  {row}" for row in rows)])


class RewriteError(PatchError):
    """The rewrite itself is malformed: a bad pattern, target, action or text."""


class TargetMissing(PatchError):
    """The module has no such function, or something else stands in its place."""


class SourceUnavailable(PatchError):
    """The function has no source text that is known to be the source of the loaded code."""


class AnchorError(PatchError):
    """An anchor matched no statement, or more than one.

    Attributes:
        rewrite: name of the rewrite.
        edit: name of the edit whose anchor failed.
        reason: one line that says what went wrong.
        candidates: nearest statements of the function, best first; for an ambiguous anchor, all that matched.
    """

    def __init__(
        self,
        message: str,
        *,
        rewrite: str = "",
        edit: str = "",
        reason: str = "",
        candidates: tuple[Candidate, ...] = (),
    ):
        super().__init__(message)
        self.rewrite = rewrite
        self.edit = edit
        self.reason = reason
        self.candidates = candidates

    @property
    def nearest(self) -> Candidate | None:
        """The candidate most like the anchor, or None when the function holds nothing like it."""
        return self.candidates[0] if self.candidates else None

    def to_dict(self) -> dict[str, object]:
        """The error as JSON-ready data."""
        return {
            "rewrite": self.rewrite,
            "edit": self.edit,
            "target": self.target,
            "package": self.package,
            "version": self.version,
            "reason": self.reason,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
        }
