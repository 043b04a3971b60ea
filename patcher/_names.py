"""Names that a text needs and a function has: a renamed parameter is found when patching, not when training."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from patcher._locate import SCOPES, Scope
from patcher._namespace import CELL

_MODULE = frozenset(("__name__", "__file__", "__doc__", "__package__", "__spec__", "__loader__", "__class__"))


def missing(tree: ast.Module, path: list[Scope], body: Iterable[ast.stmt]) -> list[str]:
    """Names that statements read and that neither they, nor the function, nor what is around the function binds.

    Args:
        tree: the whole module.
        path: the definitions from the module down to the function.
        body: the statements that go into the function.
    """
    text = ast.Module(body=list(body), type_ignores=[])
    needed = {node.id for node in ast.walk(text) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    known = {CELL, *dir(builtins), *_MODULE, *_bound(text)}
    for scope in path:
        if not isinstance(scope, ast.ClassDef):
            known |= {argument.arg for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)}
            known |= set(_bound(scope))
            known |= {node.id for node in ast.walk(scope) if isinstance(node, ast.Name)}  # it reads them itself
    known |= set(_bound(tree))
    return [] if "*" in known else sorted(needed - known)


def _bound(scope: ast.AST) -> Iterator[str]:
    """Names that the statements of a scope bind; ``*`` for a star import. Inner scopes bind their own names."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, *SCOPES)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        elif isinstance(node, ast.Lambda | ast.arg):
            # its parameters belong to the text that uses them
            yield from (a.arg for a in ast.walk(node) if isinstance(a, ast.arg))
        if not isinstance(node, SCOPES):
            yield from _bound(node)
