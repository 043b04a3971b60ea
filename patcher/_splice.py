"""Puts text into a source at the spans of nodes. Lines that no edit touches stay byte for byte."""

from __future__ import annotations

import ast
import itertools
import textwrap
from dataclasses import dataclass

from patcher._errors import RewriteError
from patcher._layout import Layout, indented
from patcher._locate import Function
from patcher._normalform import Located

_COMPOUND = (
    ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.Match,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, *([ast.TryStar] if hasattr(ast, "TryStar") else []),
)  # fmt: skip
_ATOMS = (ast.Name, ast.Call, ast.Attribute, ast.Constant, ast.Subscript, ast.List, ast.Dict, ast.Set, ast.ListComp)


@dataclass(frozen=True)
class Operation:
    """One change at one node: ``action`` is ``"before"``, ``"after"`` or ``"replace"``."""

    place: Located
    action: str
    text: str
    run: int = 1

    @property
    def last(self) -> ast.stmt:
        """The last statement of the run that the operation speaks of."""
        start = next(i for i, node in enumerate(self.place.block) if node is self.place.statement)
        return self.place.block[start + self.run - 1]


@dataclass(frozen=True)
class Splice:
    """Text that takes the place of ``source[start:stop]``."""

    start: int
    stop: int
    text: str


def apply(source: str, function: Function, operations: list[Operation]) -> str:
    """The source with all operations made.

    Args:
        source: text of the module.
        function: the function's node, parsed from that text.
        operations: what to change, in the order in which texts at one place are to stand.

    Raises:
        RewriteError: the operations overlap, or a text cannot stand where it is asked to.
    """
    layout = Layout(source)
    splices = [_splice(layout, operation) for operation in operations]
    ordered = sorted(enumerate(splices), key=lambda item: (item[1].start, item[1].stop, item[0]))
    for (_, left), (_, right) in itertools.pairwise(ordered):
        if left.stop > right.start:
            raise RewriteError(f"two edits of {function.name!r} overlap near line {layout.line_of(right.start) + 1}")
    for _, splice in reversed(ordered):
        source = source[: splice.start] + splice.text + source[splice.stop :]
    return source


def parsed(text: str) -> list[ast.stmt]:
    """Statements of an edit's text.

    Raises:
        RewriteError: the text is not Python.
    """
    try:
        return ast.parse(textwrap.dedent(text)).body
    except SyntaxError as error:
        raise RewriteError(f"the text {text!r} is not Python: {error}") from error


def _splice(layout: Layout, operation: Operation) -> Splice:
    node = operation.place.node
    if operation.action == "replace" and not isinstance(node, ast.stmt):
        return _replace_expression(layout, node, operation.text)
    statement = operation.place.statement
    text = textwrap.dedent(operation.text).strip("\n").rstrip() or "pass"
    newline = layout.newline(statement)
    if operation.action == "before":
        if layout.opens_line(statement):
            start = layout.begin(statement) - len(layout.indent(statement))
            return Splice(start, start, indented(text, layout.indent(statement), newline) + newline)
        start = layout.begin(statement)
        return Splice(start, start, f"{_inline(text, layout, statement)}; ")
    if operation.action == "after":
        return _after(layout, operation.last, text, newline)
    return _replace(layout, statement, operation.last, text, newline)


def _after(layout: Layout, statement: ast.stmt, text: str, newline: str) -> Splice:
    if isinstance(statement, _COMPOUND) or (layout.opens_line(statement) and layout.closes_line(statement)):
        start = layout.next_line(statement)
        block = indented(text, layout.indent(statement), newline)
        unended = start == len(layout.text) and layout.text[-1:] not in ("\n", "\r")
        return Splice(start, start, newline + block if unended else block + newline)
    end = layout.end(statement)
    return Splice(end, end, f"; {_inline(text, layout, statement)}")


def _replace(layout: Layout, first: ast.stmt, last: ast.stmt, text: str, newline: str) -> Splice:
    start, stop = layout.begin(first), layout.end(last)
    if layout.opens_line(first) and layout.closes_line(last):
        return Splice(start, stop, indented(text, layout.indent(first), newline).lstrip())
    return Splice(start, stop, _inline(text, layout, first))


def _replace_expression(layout: Layout, node: ast.AST, text: str) -> Splice:
    start, stop = layout.begin(node), layout.end(node)
    if isinstance(node, ast.keyword):
        return Splice(start, stop, text.strip())
    body = parsed(text)
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise RewriteError(f"an expression can only be replaced by an expression, not by {text!r}")
    value = body[0].value
    plain = ast.unparse(value)
    return Splice(start, stop, plain if isinstance(value, _ATOMS) else f"({plain})")


def _inline(text: str, layout: Layout, statement: ast.stmt) -> str:
    """The text on one line, for a place that shares its line with other statements."""
    body = parsed(text)
    if any(isinstance(node, _COMPOUND) for node in body):
        line = layout.line_of(layout.begin(statement)) + 1
        raise RewriteError(f"line {line} holds several statements; a block cannot be put there: {text!r}")
    return "; ".join(ast.unparse(node) for node in body)
