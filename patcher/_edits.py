"""Edits a source text: finds every anchor of a rewrite, then makes all edits or none. Imports nothing it edits."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from patcher import _proof, _splice
from patcher._errors import PatchError, SourceUnavailable
from patcher._locate import Scope, by_line, by_name, first_line
from patcher._plan import Site
from patcher._rewrite import Outcome, Rewrite
from patcher._splice import Operation

_BOM = "\ufeff"


@dataclass(frozen=True)
class Edited:
    """A source text with the edits of a rewrite made.

    Attributes:
        text: the whole text.
        matched: for each edit its name and the index of the anchor alternative that matched (0 for ``append`` and
            ``prepend``), or ``"already there"``, or ``"missed"``.
        line: first line of the function, from 1; edits leave it where it is.
    """

    text: str
    matched: list[tuple[str, Outcome]]
    line: int

    @property
    def changed(self) -> bool:
        """Whether any edit was made."""
        return any(isinstance(outcome, int) for _, outcome in self.matched)


def edit_source(
    source: str, rewrite: Rewrite, *, version: str | None = None, line: int | None = None, name: str | None = None
) -> Edited:
    """Makes the edits of a rewrite in the text of the module that holds its function.

    Args:
        source: text of the whole module.
        rewrite: what to change.
        version: version of the package, for messages.
        line: first line of the function, when known; else it is found by its qualified name.
        name: name of the definition on that line, when it is not the last part of the qualified name.

    Raises:
        AnchorError: an anchor of a required edit matches nothing, or an anchor matches more than once.
        TargetMissing: the text does not define the function, or defines it on several branches.
        SourceUnavailable: the text is not Python.
        RewriteError: a text cannot stand where the edit puts it.
    """
    try:
        return _edited(source, rewrite, version, line, name)
    except PatchError as error:
        error.locate(rewrite.target, rewrite.package, version)
        raise


def _edited(source: str, rewrite: Rewrite, version: str | None, line: int | None, name: str | None) -> Edited:
    bom = _BOM if source.startswith(_BOM) else ""
    source = source[len(bom) :]
    tree = parse(source, rewrite.module)
    path = find_path(tree, rewrite.qualname, line, name)
    function = path[-1]
    site = Site(tree, path, rewrite, version)
    operations: list[Operation] = []
    matched: list[tuple[str, Outcome]] = []
    for edit in rewrite.edits:
        outcome, operation = site.plan(edit)
        matched.append((edit.name, outcome))
        if operation is not None:
            operations.append(operation)
    if not operations:
        return Edited(bom + source, matched, first_line(function))
    text = _splice.apply(source, function, operations)
    _proof.check(tree, text, operations)
    return Edited(bom + text, matched, first_line(function))


def parse(source: str, what: str) -> ast.Module:
    """The tree of a module's text.

    Raises:
        SourceUnavailable: the text is empty or not Python.
    """
    if not source.strip():
        raise SourceUnavailable(f"the source text of {what} is empty")
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise SourceUnavailable(f"the source text of {what} is not Python: {error}") from error


def find_path(tree: ast.Module, qualname: str, line: int | None, name: str | None = None) -> list[Scope]:
    """The definitions from the module down to a function, by its first line if given, else by its name."""
    if line is None:
        return by_name(tree, qualname)
    name = name or qualname.rpartition(".")[2]
    path = by_line(tree, name, line)
    if path is None:
        raise SourceUnavailable(
            f"line {line} of the source text does not define {name!r}: the file is not the one that was loaded"
        )
    return path
