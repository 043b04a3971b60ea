"""Patterns with holes: their normal form as a template, and the regex made from it.

The regex proposes what each hole holds; putting those texts back into the template and comparing trees proves it.
A hole can therefore neither swallow two arguments nor cut across an operator.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from patcher._errors import RewriteError

_HOLE = re.compile(r"\$(?:(\.\.\.)([A-Za-z_]\w*)?|([A-Za-z_]\w*))")
_ATOM = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")
_MARK = re.compile(r"(\*{0,2})_(hole|rest)_(\w+?)_end_")
_WORD = re.compile(r"[A-Za-z_]\w*")

# In normal form a hole is made of plain characters, strings and bracketed groups; groups nest by recursion.
_DEFINE = r"""(?(DEFINE)
(?P<q>'{3}(?:[^\\]|\\.)*?'{3}|"{3}(?:[^\\]|\\.)*?"{3}|'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")
(?P<g>\((?:[^()\[\]{}'"]|(?&q)|(?&g))*+\)|\[(?:[^()\[\]{}'"]|(?&q)|(?&g))*+\]|\{(?:[^()\[\]{}'"]|(?&q)|(?&g))*+\})
)""".replace("\n", "")
_UNIT = r"""(?:[^()\[\]{}'"\n]|(?&q)|(?&g))"""


@dataclass(frozen=True)
class Piece:
    """Part of a template: literal text, an expression hole, or a rest hole with the comma that goes with it."""

    kind: str  # "text", "hole", "rest"
    value: str
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Template:
    """A pattern in normal form.

    Attributes:
        tree: the pattern's node, holes as marked identifiers.
        pieces: its normal form, cut at the holes.
    """

    tree: ast.AST
    pieces: tuple[Piece, ...]

    def regex(self, lazy: bool) -> str:
        """Regex for the normal form; ``lazy`` says which way an ambiguous split between two holes leans."""
        many = "+?" if lazy else "+"
        seen: set[str] = set()
        out = []
        for piece in self.pieces:
            if piece.kind == "text":
                out.append(re.escape(piece.value))
            elif piece.value in seen:
                out.append(f"(?P=h_{piece.value})")
            else:
                seen.add(piece.value)
                group = f"(?P<h_{piece.value}>{_UNIT}{many})"
                out.append(group if piece.kind == "hole" else f"(?:{piece.before}{group}{piece.after})?")
        return _DEFINE + "".join(out)

    def fill(self, captures: Mapping[str, str]) -> str:
        """The pattern's text with the captures in place of the holes."""
        out = []
        for piece in self.pieces:
            if piece.kind == "text":
                out.append(piece.value)
                continue
            text = captures.get(piece.value, "")
            if piece.kind == "hole":
                out.append(text if _ATOM.match(text) else f"({text})")
            elif text:
                out.append(f"{piece.before}{text}{piece.after}")
        return "".join(out)

    @property
    def shown(self) -> str:
        """The normal form with the holes as the author wrote them, for messages."""
        return "".join(
            piece.value
            if piece.kind == "text"
            else f"${piece.value}"
            if piece.kind == "hole"
            else f"{piece.before}$...{piece.after}"
            for piece in self.pieces
        )


@lru_cache(maxsize=1024)
def parse(pattern: str, keyword: bool = False) -> tuple[Template, ...]:
    """The statements of a pattern as templates.

    Args:
        pattern: Python with holes. Several statements give several templates.
        keyword: the pattern is one keyword argument, ``name=value``.

    Raises:
        RewriteError: the pattern is not Python, or is nothing but a hole.
    """
    marked = f"_({pattern})" if keyword else pattern
    tree = _parse_marked(marked, pattern)
    if keyword:
        call = tree.body[0].value
        if call.args or len(call.keywords) != 1 or call.keywords[0].arg is None:
            raise RewriteError(f"pattern {pattern!r} is not one keyword argument")
        nodes = [call.keywords[0]]
    else:
        nodes = [node.value if isinstance(node, ast.Expr) else node for node in tree.body]
    if not nodes:
        raise RewriteError(f"pattern {pattern!r} holds no statement")
    for node in nodes:
        if isinstance(node, ast.Starred) or (isinstance(node, ast.Name) and _MARK.fullmatch(node.id)):
            raise RewriteError(f"pattern {pattern!r} is nothing but a hole: it would match anything")
    return tuple(Template(node, _cut(ast.unparse(node))) for node in nodes)


def has_holes(text: str) -> bool:
    """Whether the text holds ``$NAME`` or ``$...``."""
    return bool(_HOLE.search(text))


def substitute(text: str, captures: Mapping[str, str]) -> str:
    """The text of an edit with each ``$NAME`` replaced by what the anchor's hole matched.

    Raises:
        RewriteError: the text names a hole that the anchor does not have.
    """

    def value(match: re.Match) -> str:
        try:
            capture = captures[match[3] or match[2]]
        except KeyError:
            raise RewriteError(f"text {text!r} uses {match[0]!r}, which its anchor does not capture") from None
        return capture if match[1] or _ATOM.match(capture) or not _splits(capture) else f"({capture})"

    return _HOLE.sub(value, text)


def _splits(expression: str) -> bool:
    """Whether an expression could fall apart when it is put beside operators or commas."""
    node = ast.parse(expression, mode="eval").body
    closed = ast.Call | ast.Subscript | ast.Constant | ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp
    return not (isinstance(node, closed) or (isinstance(node, ast.Tuple) and expression.startswith("(")))


def _parse_marked(text: str, pattern: str) -> ast.Module:
    """Parses with holes as identifiers; a rest hole becomes ``*`` or ``**``, whichever keeps the written order."""
    rests = sum(1 for match in _HOLE.finditer(text) if match[1])
    failure: SyntaxError | None = None
    for stars in itertools.product(("*", "**"), repeat=rests):
        left, number = iter(stars), itertools.count()

        def mark(match: re.Match, left=left, number=number) -> str:
            if match[1]:
                return f"{next(left)}_rest_{match[2] or f'r{next(number)}'}_end_"
            return f"_hole_{match[3]}_end_"

        marked = _HOLE.sub(mark, text)
        try:
            tree = ast.parse(marked)
        except SyntaxError as error:
            failure = failure or error
            continue
        if rests == 0 or _WORD.findall(ast.unparse(tree)) == _WORD.findall(marked):
            return tree
    raise RewriteError(f"pattern {pattern!r} is not Python: {failure}") from failure


def _cut(text: str) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    end = 0
    for mark in _MARK.finditer(text):
        literal = text[end : mark.start()]
        end = mark.end()
        if mark[2] == "hole":
            pieces += [Piece("text", literal + mark[1]), Piece("hole", mark[3])]
            continue
        before = after = ""
        if literal.endswith(", "):
            literal, before = literal[:-2], ", "
        elif text.startswith(", ", end):
            end, after = end + 2, ", "
        pieces += [Piece("text", literal), Piece("rest", mark[3], before, after)]
    pieces.append(Piece("text", text[end:]))
    return tuple(piece for piece in pieces if piece.kind != "text" or piece.value)
