"""Proves a splice: the edited text parses to the old tree with the edits made on the tree, and to nothing else."""

from __future__ import annotations

import ast

from patcher._errors import RewriteError
from patcher._splice import Operation, parsed

_ADVICE = "the edits do not fit the layout of these lines. Write the anchor for the statement around them"


def check(tree: ast.Module, edited: str, operations: list[Operation]) -> None:
    """Compares the edited text with its old tree.

    Args:
        tree: the tree whose nodes the operations name. The edits are made on it: it is the new tree afterwards.
        edited: the text after the splice.
        operations: what was changed.

    Raises:
        RewriteError: the edited text does not parse, or differs from the old one by more or less than the edits.
    """
    try:
        result = ast.parse(edited)
    except SyntaxError as error:
        raise RewriteError(f"the edited text does not parse ({error}); {_ADVICE}") from error
    if ast.dump(result) != ast.dump(_expected(tree, operations)):
        raise RewriteError(f"the edited text changes more than the edits ask for; {_ADVICE}")


def _expected(tree: ast.Module, operations: list[Operation]) -> ast.Module:
    swapped: dict[int, ast.AST] = {}
    ends: dict[int, int] = {}
    # replacements come last, so that what they replace can still be found by the others
    for operation in sorted(operations, key=lambda operation: operation.action == "replace"):
        node = operation.place.node
        if operation.action == "replace" and not isinstance(node, ast.stmt):
            swapped[id(node)] = _value(node, operation.text)
        else:
            _edit_block(operation, ends)
    return _Swap(swapped).visit(tree) if swapped else tree


def _edit_block(operation: Operation, ends: dict[int, int]) -> None:
    block, first, last = operation.place.block, operation.place.statement, operation.last
    new = parsed(operation.text) or [ast.Pass()]
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
