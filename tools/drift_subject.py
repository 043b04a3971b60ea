"""A function cut out of a published module, and where each edit of its rewrite lands: what mutants are made from."""

from __future__ import annotations

import ast
import dataclasses
import io
import itertools
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from patcher.rewriting import MISSED, Edit, Edited, Rewrite, edit_source


@dataclass(frozen=True)
class Site:
    """Where one edit lands.

    Attributes:
        edit: the edit.
        block: the statements among which it lands.
        index: the anchored statement's place among them; one past the end for text appended to the function.
        depth: how many statements of the function enclose it.
    """

    edit: Edit
    block: list[ast.stmt]
    index: int
    depth: int

    @property
    def node(self) -> ast.stmt:
        """The anchored statement; for text put at a function's end, the last one."""
        return self.block[min(self.index, len(self.block) - 1)]

    @property
    def structural(self) -> bool:
        """Whether the edit needs no anchor."""
        return self.edit.structural


@dataclass(frozen=True)
class Subject:
    """A module text that holds nothing but the function (and its class), with the rewrite that is to fit it.

    Attributes:
        text: that text.
        rewrite: the rewrite.
        header: the class statements at its start.
        around: what stands before and after the function in its module.
    """

    text: str
    rewrite: Rewrite
    header: str = ""
    around: tuple[str, str] = ("", "")

    @classmethod
    def cut(cls, source: str, rewrite: Rewrite) -> Subject:
        """Cuts the function out of the text of its module; line ends become line feeds."""
        source = source.replace("\r\n", "\n")
        lines = source.splitlines(keepends=True)
        scope: ast.AST = ast.parse(source)
        header = ""
        *outer, name = rewrite.qualname.split(".")
        for part in outer:
            scope = _child(scope, part)
            header += f"class {part}:\n"
        node = _child(scope, name)
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        before, own, after = (
            "".join(part) for part in (lines[: first - 1], lines[first - 1 : node.end_lineno], lines[node.end_lineno :])
        )
        return cls(header + own, rewrite, header, (before, after))

    def whole(self, text: str) -> str:
        """The module with the function as it is in a mutant of this text."""
        before, after = self.around
        return before + text.removeprefix(self.header) + after

    @cached_property
    def patched(self) -> Edited:
        """The text as the rewrite leaves it."""
        return edit_source(self.text, self.rewrite)

    @cached_property
    def tree(self) -> ast.Module:
        """The module's tree."""
        return ast.parse(self.text)

    @cached_property
    def function(self) -> ast.FunctionDef:
        """The function's node."""
        return function_of(self.tree, self.rewrite)

    @cached_property
    def tokens(self) -> list[tokenize.TokenInfo]:
        """The text's tokens."""
        return list(tokenize.generate_tokens(io.StringIO(self.text).readline))

    @cached_property
    def starts(self) -> list[int]:
        """Offsets at which the lines start, and the end of the text."""
        found = [0]
        for line in self.text.splitlines(keepends=True):
            found.append(found[-1] + len(line))
        return found

    @cached_property
    def sites(self) -> list[Site]:
        """Where each edit lands in the text as it was published; edits that find no place have none."""
        found = []
        for edit in self.rewrite.edits:
            single = dataclasses.replace(self.rewrite, edits=(edit,))
            edited = edit_source(self.text, single)
            if edited.matched[0][1] != MISSED and edited.changed:
                after = function_of(ast.parse(edited.text), self.rewrite)
                found.append(_site(edit, self.function, after))
        return found

    def offset(self, line: int, column: int) -> int:
        """Offset of a token position (column in characters)."""
        return self.starts[line - 1] + column

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Offsets at which a node starts and stops."""
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def lines(self, node: ast.stmt) -> tuple[int, int]:
        """Offsets of the whole lines of a statement, decorators included."""
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
        return self.starts[first - 1], self.starts[node.end_lineno]

    def indent(self, node: ast.stmt) -> str:
        """The white space before a statement."""
        return self.text[self.starts[node.lineno - 1] : self.span(node)[0]]

    def alone(self, node: ast.stmt) -> bool:
        """Whether a statement has its lines to itself."""
        start, stop = self.span(node)
        before, after = self.text[self.starts[node.lineno - 1] : start], self.text[stop : self.starts[node.end_lineno]]
        return not before.strip() and not after.partition("#")[0].strip()

    def _at(self, line: int, column: int) -> int:
        text = self.text[self.starts[line - 1] : self.starts[line]]
        return self.starts[line - 1] + len(text.encode()[:column].decode())


def function_of(tree: ast.AST, rewrite: Rewrite) -> ast.FunctionDef:
    """The rewrite's function in a tree."""
    for part in rewrite.qualname.split("."):
        tree = _child(tree, part)
    return tree


def _child(scope: ast.AST, name: str) -> ast.AST:
    """The last definition of a name in a scope, which is the one that counts."""
    return [node for node in scope.body if getattr(node, "name", None) == name][-1]


def _site(edit: Edit, before: ast.FunctionDef, after: ast.FunctionDef) -> Site:
    """Finds the innermost statement at which a function and the same function with one edit made begin to differ."""
    block, index, depth = before.body, len(before.body), -1
    mine, theirs = before, after
    while mine is not None and type(mine) is type(theirs):
        step = _first_difference(mine, theirs)
        if step is None:
            break
        among, place, mine, theirs = step
        if among and isinstance(among[0], ast.stmt):
            block, index, depth = among, place, depth + 1
    return Site(edit, block, index - (edit.action == "after"), depth)


def _first_difference(mine: ast.AST, theirs: ast.AST):
    """Returns (the list that holds it, index in it, my child, their child) of the first child that differs."""
    for field in mine._fields:
        left, right = getattr(mine, field), getattr(theirs, field)
        if not isinstance(left, list):
            left, right = [left], [right]
        for index, (one, two) in enumerate(itertools.zip_longest(left, right)):
            if not _same(one, two):
                # In lists of different length something was put in, and what stands here is not its counterpart.
                return left, index, one, two if len(left) == len(right) else None
    return None


def _same(left: object, right: object) -> bool:
    if isinstance(left, ast.AST) and isinstance(right, ast.AST):
        return ast.dump(left) == ast.dump(right)
    return left == right


def splice(text: str, changes: Iterable[tuple[int, int, str]]) -> str:
    """Replaces the spans `text[start:stop]`, given in any order."""
    for start, stop, new in sorted(changes, key=lambda change: change[:2], reverse=True):
        text = text[:start] + new + text[stop:]
    return text


def depths(tokens: list[tokenize.TokenInfo]) -> Iterator[tuple[tokenize.TokenInfo, int]]:
    """Yields each token with the number of brackets open after it."""
    depth = 0
    for token in tokens:
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        yield token, depth
