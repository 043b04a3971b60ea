"""Edits a source text: finds every anchor of a rewrite, then makes all edits or none. Imports nothing it edits."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from patcher import _diagnostics, _match, _pattern, _proof, _splice
from patcher._anchors import Anchor
from patcher._errors import RewriteError, SourceUnavailable
from patcher._locate import Function, Scope, by_line, by_name, first_line
from patcher._match import Match
from patcher._normalform import Located
from patcher._rewrite import STRUCTURAL, Edit, Rewrite
from patcher._splice import Operation

ALREADY = "already there"
MISSED = "missed"

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
    matched: list[tuple[str, int | str]]
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
    bom = _BOM if source.startswith(_BOM) else ""
    source = source[len(bom) :]
    tree = parse(source, rewrite.module)
    path = find_path(tree, rewrite.qualname, line, name)
    function = path[-1]
    operations: list[Operation] = []
    matched: list[tuple[str, int | str]] = []
    for edit in rewrite.edits:
        outcome, operation = _plan(tree, function, rewrite, edit, version)
        matched.append((edit.name, outcome))
        if operation is not None:
            operations.append(operation)
    if not operations:
        return Edited(bom + source, matched, first_line(function))
    text = _splice.apply(source, function, operations)
    _proof.check(source, tree, text, operations)
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


def _plan(
    tree: ast.Module, function: Function, rewrite: Rewrite, edit: Edit, version: str | None
) -> tuple[int | str, Operation | None]:
    if _is_done(function, edit):
        return ALREADY, None
    if edit.action in STRUCTURAL:
        return _plan_structural(function, rewrite, edit, version)
    for index, anchor in enumerate(edit.anchors):
        found = _match.find(function, anchor)
        if len(found) > 1:
            reason = f"the anchor matches {len(found)} times and must match once"
            candidates = _diagnostics.matched(rewrite.qualname, found, anchor)
            raise _diagnostics.miss(rewrite, edit, reason, candidates, version)
        if found:
            return index, _operation(edit, found[0])
    if not edit.required:
        return MISSED, None
    candidates = _diagnostics.nearest(tree, function, rewrite.qualname, edit.anchors)
    raise _diagnostics.miss(rewrite, edit, "no statement matches the anchor", candidates, version)


def _operation(edit: Edit, match: Match) -> Operation:
    text = _pattern.substitute(edit.text, match.captures)
    whole = isinstance(match.place.node, ast.stmt) or match.place.node is getattr(match.place.statement, "value", None)
    if edit.action == "after" and isinstance(match.place.statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
        raise RewriteError(f"edit {edit.name!r}: text after line {match.place.line} would never run")
    place = match.place
    if whole and edit.action == "replace" and isinstance(place.statement, ast.Expr):
        # a whole statement may be replaced by statements, an inner expression only by an expression
        place = Located(place.statement, place.statement, place.block, place.depth)
    return Operation(place, edit.action, text, match.run)


def _is_done(function: Function, edit: Edit) -> bool:
    """Whether the function already holds the edit's own text, or what the edit says is as good."""
    if any(_match.find(function, anchor) for anchor in edit.done):
        return True
    if not edit.text.strip():
        return False
    level = "keyword" if any(anchor.level == "keyword" for anchor in edit.anchors) else "any"
    return bool(_match.find(function, Anchor(_dedented(edit.text), level)))


def _dedented(text: str) -> str:
    import textwrap

    return textwrap.dedent(text).strip("\n")


def _plan_structural(
    function: Function, rewrite: Rewrite, edit: Edit, version: str | None
) -> tuple[int | str, Operation | None]:
    body = function.body
    docstring = ast.get_docstring(function, clean=False) is not None
    if edit.action == "prepend":
        if docstring and len(body) == 1:
            return 0, Operation(Located(body[0], body[0], body, 0), "after", edit.text)
        first = body[1 if docstring else 0]
        return 0, Operation(Located(first, first, body, 0), "before", edit.text)
    early = _exits(function)
    if not early:
        return 0, Operation(Located(body[-1], body[-1], body, 0), "after", edit.text)
    if not edit.required:
        return MISSED, None
    reason = "the function leaves before its end, so text at the end would not always run"
    places = [match.place for match in early]
    anchor = Anchor("return")
    candidates = tuple(
        _diagnostics._candidate(place, rewrite.qualname, anchor, 1.0, "leaves the function") for place in places
    )
    raise _diagnostics.miss(rewrite, edit, reason, candidates, version)


def _exits(function: Function) -> list[Match]:
    """Statements of the function itself that leave it before its end: a return, or a raise as its last statement."""
    from patcher._normalform import statements

    found = [Match(place) for place in statements(function) if isinstance(place.node, ast.Return)]
    last = function.body[-1]
    if isinstance(last, ast.Raise):
        found.append(Match(Located(last, last, function.body, 0)))
    return found
