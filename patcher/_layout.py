"""Source text by node: offsets, line ends, indentation, and whether a statement has its line to itself."""

from __future__ import annotations

import ast
import io
import re
import tokenize

from patcher._locate import SCOPES

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


class Layout:
    r"""The lines of a text as Python's tokenizer counts them, with offsets of nodes in the text.

    ``ast`` gives columns in UTF-8 bytes and counts only ``\n``, ``\r\n`` and ``\r`` as line ends;
    ``str.splitlines`` would also cut at form feeds and Unicode separators.
    """

    def __init__(self, text: str):
        self.text = text
        self.lines = _LINE.findall(text)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """Offset in the text of a line from 1 and a column in UTF-8 bytes."""
        row = self.lines[line - 1]
        if not row.isascii():
            column = len(row.encode()[:column].decode())
        return self.starts[line - 1] + column

    def begin(self, node: ast.AST) -> int:
        """Offset of the node's first character; of the first ``@`` for a decorated definition."""
        if isinstance(node, SCOPES) and node.decorator_list:
            first = node.decorator_list[0]
            return self.text.rindex("@", 0, self.offset(first.lineno, first.col_offset))
        return self.offset(node.lineno, node.col_offset)

    def end(self, node: ast.AST) -> int:
        """Offset just past the node's last character."""
        return self.offset(node.end_lineno, node.end_col_offset)

    def line_of(self, offset: int) -> int:
        """Index from 0 of the line that holds the offset."""
        low, high = 0, len(self.lines)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.starts[middle] <= offset else (low, middle)
        return low

    def indent(self, node: ast.AST) -> str:
        """What stands before the node on its line; meaningful when ``opens_line``."""
        begin = self.begin(node)
        return self.text[self.starts[self.line_of(begin)] : begin]

    def newline(self, node: ast.AST) -> str:
        """Line end of the node's first line, or of the text's first line, or a line feed."""
        for row in (self.lines[self.line_of(self.begin(node))], self.lines[0]):
            if end := row[len(row.rstrip("\r\n")) :]:
                return end
        return "\n"

    def opens_line(self, node: ast.AST) -> bool:
        """Whether only white space stands before the node on its logical line."""
        index = self.line_of(self.begin(node))
        if self.indent(node).strip():
            return False
        return index == 0 or not self.lines[index - 1].rstrip("\r\n").endswith("\\")

    def closes_line(self, node: ast.AST) -> bool:
        """Whether only white space or a comment follows the node on its line."""
        end = self.end(node)
        rest = self.text[end : self.starts[self.line_of(max(end - 1, 0)) + 1]].strip()
        return not rest or rest.startswith("#")

    def next_line(self, node: ast.AST) -> int:
        """Offset of the line after the node's last."""
        return self.starts[node.end_lineno]


def indented(text: str, indent: str, newline: str) -> str:
    """The text with ``indent`` before each line, except inside strings that span lines; no final line end."""
    lines = text.split("\n")
    inside = _string_lines(text)
    out = [line if number in inside or not line.strip() else indent + line for number, line in enumerate(lines, 1)]
    return newline.join(out)


def _string_lines(text: str) -> set[int]:
    """Lines, from 1, that begin inside a string."""
    middle = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.STRING, middle):
            lines.update(range(token.start[0] + 1, token.end[0] + 1))
    return lines
