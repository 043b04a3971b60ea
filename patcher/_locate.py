"""Finds a function definition in a module's tree, by qualified name or by line."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from patcher._errors import TargetMissing

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def first_line(node: Scope) -> int:
    """Line of the definition with its decorators, the line that a code object calls its first."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def by_name(tree: ast.Module, qualname: str) -> list[Scope]:
    """The definitions from the module down to the function of that qualified name.

    Raises:
        TargetMissing: there is no such function, or more than one that could be bound to the name.
    """
    path: list[Scope] = []
    scope: ast.AST = tree
    for name in (part for part in qualname.split(".") if part != "<locals>"):
        found = [(block, node) for block, node in _definitions(scope) if node.name == name and not _is_overload(node)]
        if not found:
            where = ".".join(node.name for node in path) or "the module"
            raise TargetMissing(f"{where} does not define {name!r} (looking for {qualname!r})")
        if len({id(block) for block, _ in found}) > 1:
            lines = ", ".join(str(node.lineno) for _, node in found)
            raise TargetMissing(
                f"{qualname!r} is defined on several branches (lines {lines}); which one counts is open"
            )
        scope = found[-1][1]  # within one block the last definition is the one that stays bound
        path.append(scope)
    if not path or isinstance(path[-1], ast.ClassDef):
        raise TargetMissing(f"{qualname!r} is a class, not a function")
    return path


def by_line(tree: ast.Module, name: str, line: int) -> list[Scope] | None:
    """The definitions down to the function of that name whose first line is ``line``, or None."""

    def search(scope: ast.AST, path: list[Scope]) -> list[Scope] | None:
        for _, node in _definitions(scope):
            here = [*path, node]
            if node.name == name and first_line(node) == line and not isinstance(node, ast.ClassDef):
                return here
            if found := search(node, here):
                return found
        return None

    return search(tree, [])


def _definitions(scope: ast.AST) -> Iterator[tuple[list, Scope]]:
    """Definitions in a scope's own statements with the block each stands in; not those of inner scopes."""
    for _, value in ast.iter_fields(scope):
        if not isinstance(value, list):
            continue
        for child in value:
            if isinstance(child, SCOPES):
                yield value, child
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                yield from _definitions(child)


def _is_overload(node: Scope) -> bool:
    names = (ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list)
    return "overload" in names
