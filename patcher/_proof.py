"""Proves a splice: the edited text parses to the old tree with the edits made on the tree, and to nothing else."""

from __future__ import annotations

import ast

from patcher._errors import RewriteError
from patcher._splice import Operation, parsed


def check(source: str, tree: ast.Module, edited: str, operations: list[Operation]) -> ast.Module:
    """The tree of the edited text.

    Args:
        source: the text before.
        tree: its tree, the one whose nodes the operations name.
        edited: the text after.
        operations: what was changed.

    Raises:
        RewriteError: the edited text does not parse, or differs from the old one by more or less than the edits.
    """
    try:
        result = ast.parse(edited)
    except SyntaxError as error:
        raise RewriteError(
            f"the edited text does not parse ({error}); the edits do not fit the layout there"
        ) from error
    if ast.dump(result) != ast.dump(_expected(source, tree, operations)):
        raise RewriteError("the edited text changes more than the edits ask for; the edits do not fit the layout there")
    return result


def _expected(source: str, tree: ast.Module, operations: list[Operation]) -> ast.Module:
    copy = ast.parse(source)
    twin: dict[int, ast.AST] = {}
    blocks: dict[int, list[ast.stmt]] = {}
    for old, new in zip(ast.walk(tree), ast.walk(copy), strict=True):
        twin[id(old)] = new
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(old, name, None), list):
                blocks[id(getattr(old, name))] = getattr(new, name)
    swapped: dict[int, ast.AST] = {}
    ends: dict[int, int] = {}
    # replacements come last, so that what they replace can still be found by the others
    for operation in sorted(operations, key=lambda operation: operation.action == "replace"):
        node = operation.place.node
        if operation.action == "replace" and not isinstance(node, ast.stmt):
            swapped[id(twin[id(node)])] = _value(node, operation.text)
        else:
            _edit_block(blocks[id(operation.place.block)], twin, operation, ends)
    return _Swap(swapped).visit(copy) if swapped else copy


def _edit_block(block: list, twin: dict, operation: Operation, ends: dict[int, int]) -> None:
    new = parsed(operation.text) or [ast.Pass()]
    first, last = twin[id(operation.place.statement)], twin[id(operation.last)]
    start = next(i for i, node in enumerate(block) if node is first)
    stop = next(i for i, node in enumerate(block) if node is last) + 1
    if operation.action == "before":
        block[start:start] = new
    elif operation.action == "after":
        stop += ends.get(id(last), 0)  # a second text after the same statement follows the first
        block[stop:stop] = new
        ends[id(last)] = ends.get(id(last), 0) + len(new)
    else:
        block[start:stop] = new


def _value(node: ast.AST, text: str) -> ast.AST:
    if isinstance(node, ast.keyword):
        return ast.parse(f"_({text.strip()})").body[0].value.keywords[0]
    return parsed(text)[0].value


class _Swap(ast.NodeTransformer):
    def __init__(self, swapped: dict[int, ast.AST]):
        self.swapped = swapped

    def visit(self, node: ast.AST) -> ast.AST:
        return self.swapped.get(id(node)) or self.generic_visit(node)
