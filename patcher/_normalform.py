"""The normal form of Python text, and the nodes of one function that an anchor can match.

The normal form is what ``ast.unparse`` prints: no comments, one quote style, no line breaks or trailing commas.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from patcher._locate import SCOPES, Function

SUITES = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True)
class Located:
    """One node of a function.

    Attributes:
        node: the statement, expression or keyword argument.
        statement: the statement that holds it (itself, for a statement).
        block: the list of statements that holds the statement.
        depth: 0 for a direct child of the function body.
    """

    node: ast.AST
    statement: ast.stmt
    block: list[ast.stmt]
    depth: int

    @property
    def line(self) -> int:
        """Line in the module's text, from 1."""
        return getattr(self.node, "lineno", self.statement.lineno)


def statements(function: Function) -> Iterator[Located]:
    """Statements of the function itself at every depth, in order; nested functions and classes are not entered."""
    yield from _block(function.body, 0)


def _block(block: list[ast.stmt], depth: int) -> Iterator[Located]:
    for statement in block:
        yield Located(statement, statement, block, depth)
        if not isinstance(statement, SCOPES):
            yield from _inner(statement, depth + 1)


def _inner(node: ast.AST, depth: int) -> Iterator[Located]:
    for name in SUITES:
        suite = getattr(node, name, None)
        if not isinstance(suite, list):
            continue
        if name in ("handlers", "cases"):
            for clause in suite:
                yield from _inner(clause, depth)
        elif is_elif(node, name):
            # `elif` is an `if` of its own in the tree, but nothing can be put before it
            yield from _inner(suite[0], depth)
        else:
            yield from _block(suite, depth)


def is_elif(node: ast.AST, suite: str) -> bool:
    """Whether the suite of an ``if`` prints as ``elif``.

    ``else: if x: ...`` on lines of their own is the same tree; it differs only in the columns: an ``elif`` stands
    in the column of its ``if``.
    """
    if not isinstance(node, ast.If) or suite != "orelse" or len(node.orelse) != 1:
        return False
    inner = node.orelse[0]
    return isinstance(inner, ast.If) and inner.col_offset == node.col_offset


def expressions(function: Function) -> Iterator[Located]:
    """Expressions and keyword arguments of the function itself; f-strings are not entered.

    Positions inside f-strings are not those of the text before Python 3.12.
    """
    for located in statements(function):
        for child in _own_expressions(located.statement):
            yield Located(child, located.statement, located.block, located.depth)


def _own_expressions(node: ast.AST) -> Iterator[ast.AST]:
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if name == "orelse" and children and is_elif(node, name):
            # nothing else would reach the test of an `elif`
            yield from _own_expressions(children[0])
        for child in children:
            if isinstance(child, ast.expr | ast.keyword):
                yield child
            if isinstance(child, ast.JoinedStr) or not isinstance(child, ast.AST):
                continue
            if not isinstance(child, ast.stmt):
                yield from _own_expressions(child)


def header(statement: ast.stmt) -> str:
    """First line of the normal form of a statement."""
    return ast.unparse(bare(statement)).partition("\n")[0]


def bare(statement: ast.stmt) -> ast.stmt:
    """A copy of a compound statement with its suites emptied; a simple statement as it is."""
    if not any(isinstance(getattr(statement, name, None), list) for name in SUITES):
        return statement
    fields = dict(ast.iter_fields(statement))
    for name in SUITES:
        if isinstance(fields.get(name), list):
            fields[name] = [ast.Expr(ast.Constant(...))] if name == "body" else []
    if isinstance(statement, ast.Try):
        fields["finalbody"] = [ast.Expr(ast.Constant(...))]
    if isinstance(statement, SCOPES):
        fields["decorator_list"] = []
    return ast.copy_location(type(statement)(**fields), statement)
