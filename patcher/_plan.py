"""Decides what one edit does to one function: where it goes, or that it is there already, or that it has no place."""

from __future__ import annotations

import ast
import textwrap
from collections import defaultdict
from dataclasses import dataclass

from patcher import _diagnostics, _match, _names, _pattern
from patcher._anchors import Anchor
from patcher._compile import bare_function
from patcher._diagnostics import Candidate
from patcher._errors import RewriteError
from patcher._locate import Function, Scope
from patcher._match import Match
from patcher._namespace import CELL
from patcher._normalform import Located, statements
from patcher._rewrite import ALREADY, MISSED, Edit, Outcome, Rewrite
from patcher._splice import Operation, parsed


@dataclass(frozen=True)
class Site:
    """A function in its module, with the rewrite that is to be made there.

    Attributes:
        tree: the whole module.
        path: the definitions from the module down to the function.
        rewrite: the rewrite, for messages.
        version: version of the package, for messages.
    """

    tree: ast.Module
    path: list[Scope]
    rewrite: Rewrite
    version: str | None

    @property
    def function(self) -> Function:
        """The function's node."""
        return self.path[-1]

    def plan(self, edit: Edit) -> tuple[Outcome, Operation | None]:
        """What an edit does here.

        Returns:
            The index of the anchor alternative with the operation; or ``"already there"`` or ``"missed"`` with None.

        Raises:
            AnchorError: the edit is required and has no place, or more than one.
        """
        if any(_match.find(self.function, anchor) for anchor in edit.done) or self._calls_are_there(edit):
            return ALREADY, None
        found = self._structural(edit) if edit.structural else self._anchored(edit)
        if found == ALREADY:
            return ALREADY, None
        if isinstance(found, _Miss):
            return self._missed(edit, found)
        _, operation = found
        if self._is_made(edit, operation):
            return ALREADY, None
        if unknown := _names.missing(self.tree, self.path, parsed(operation.text)):
            return self._missed(edit, _Miss(f"the text uses {', '.join(unknown)}, which the function does not have"))
        return found

    def _missed(self, edit: Edit, miss: _Miss) -> tuple[Outcome, None]:
        if edit.required:
            raise _diagnostics.miss(self.rewrite, edit, miss.reason, miss.candidates, self.version)
        return MISSED, None

    def _calls_are_there(self, edit: Edit) -> bool:
        """Whether the edit's own text is there, for a text that no upstream could have written."""
        return CELL in edit.text and bool(self._own(edit))

    def _own(self, edit: Edit) -> list[Match]:
        text = textwrap.dedent(edit.text).strip("\n")
        if not text.strip():
            return []
        return _match.find(self.function, Anchor(text, "keyword" if _is_keyword(edit) else "any"))

    def _is_made(self, edit: Edit, operation: Operation) -> bool:
        """Whether the edit's own text stands just where the operation would put it.

        A plain text (``x = 1``, ``$A + 1``) may stand elsewhere by chance. An anchor may match its own replacement.
        """
        if CELL in edit.text:
            return False  # asked already, for the whole function
        place, block, structural = operation.place, operation.place.block, edit.structural
        for match in self._own(edit):
            own = match.place
            if operation.action == "replace":
                if _outlives(edit) and any(node is place.node for node in ast.walk(own.node)):
                    return True
                continue
            if own.block is not block:
                continue
            start = _index(block, own.statement)
            stop, anchor = start + match.run, _index(block, place.statement)
            if operation.action == "before" and (stop == anchor or (structural and start == anchor)):
                return True
            if operation.action == "after" and (start == anchor + operation.run or (structural and stop == anchor + 1)):
                return True
        return False

    def _anchored(self, edit: Edit) -> tuple[int, Operation] | _Miss | str:
        for index, anchor in enumerate(edit.anchors):
            found = _match.find(self.function, anchor)
            if len(found) > 1:
                reason = f"the anchor matches {len(found)} times and must match once"
                return _Miss(reason, _diagnostics.matched(self.rewrite.qualname, found, anchor))
            if found:
                return index, _operation(edit, found[0])
        if edit.action == "replace" and not _pattern.has_holes(edit.text) and self._own(edit):
            return ALREADY  # the anchor is gone and what was to replace it is there
        if not edit.required:
            return _Miss("no statement matches the anchor")  # nobody reads the candidates, which take time to find
        candidates = _diagnostics.nearest(self.tree, self.function, self.rewrite.qualname, edit.anchors)
        return _Miss("no statement matches the anchor", candidates)

    def _structural(self, edit: Edit) -> tuple[int, Operation] | _Miss:
        body = self.function.body
        if edit.action == "prepend":
            documented = ast.get_docstring(self.function, clean=False) is not None
            if documented and len(body) == 1:
                return 0, Operation(Located(body[0], body[0], body, 0), "after", edit.text)
            first = body[1 if documented else 0]
            return 0, Operation(Located(first, first, body, 0), "before", edit.text)
        exits = _exits(self.function)
        if not exits:
            return 0, Operation(Located(body[-1], body[-1], body, 0), "after", edit.text)
        note, where = "leaves the function", self.rewrite.qualname
        candidates = tuple(_diagnostics.candidate(place, where, Anchor("return"), 1.0, note) for place in exits)
        return _Miss("the function leaves before its end, so text at the end would not always run", candidates)


@dataclass(frozen=True)
class _Miss:
    """Why an edit has no place, and what comes near."""

    reason: str
    candidates: tuple[Candidate, ...] = ()


def _operation(edit: Edit, match: Match) -> Operation:
    place = match.place
    if edit.action == "after" and isinstance(place.statement, ast.Return | ast.Raise | ast.Break | ast.Continue):
        raise RewriteError(f"edit {edit.name!r}: text after line {place.line} would never run")
    if isinstance(place.statement, ast.Expr) and place.statement.value is place.node:
        # a whole statement may be replaced by statements, an inner expression only by an expression
        place = Located(place.statement, place.statement, place.block, place.depth)
    return Operation(place, edit.action, _pattern.substitute(edit.text, match.captures), match.run)


def _outlives(edit: Edit) -> bool:
    """Whether an anchor of the edit matches the edit's own text, so that finding it does not mean that it is unmade."""
    filled = _pattern.substitute(edit.text, defaultdict(lambda: "_"))
    if _is_keyword(edit):
        filled = f"_({filled})"
    function = bare_function("_", [], parsed(filled))
    return any(_match.find(function, anchor, any_level=True) for anchor in edit.anchors)


def _is_keyword(edit: Edit) -> bool:
    return any(anchor.level == "keyword" for anchor in edit.anchors)


def _index(block: list[ast.stmt], statement: ast.stmt) -> int:
    return next(index for index, node in enumerate(block) if node is statement)


def _exits(function: Function) -> list[Located]:
    """Statements of the function itself that leave it before its end: a return, or a raise as its last statement."""
    found = [place for place in statements(function) if isinstance(place.node, ast.Return)]
    last = function.body[-1]
    return [*found, Located(last, last, function.body, 0)] if isinstance(last, ast.Raise) else found
