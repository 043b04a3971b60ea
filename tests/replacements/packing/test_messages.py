"""Every message has its line in docs/messages.md, and every line its message."""

import ast
import re
from pathlib import Path

from replacements.packing.verdict import Reason

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/messages.md").read_text(encoding="utf-8")


def rows(heading):
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    cells = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in cells[1:] if not set(row[0]) <= set(" -")]


def test_each_reason_has_a_line_and_each_line_a_reason():
    lines = [*rows("Training padded instead of packed"), *rows("Refused")]
    assert sorted(line[0].strip("`") for line in lines) == sorted(reason.code for reason in Reason)
    assert all(all(line) for line in lines)


def raised_classes():
    """Names of the exception classes that the packages define and a user can meet."""
    found = set()
    for path in [*(ROOT / "patcher").glob("*.py"), *(ROOT / "replacements/packing").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            bases = [ast.unparse(base) for base in getattr(node, "bases", [])]
            if any(re.search(r"(Error|Exception)$", base) for base in bases) and not node.name.startswith("_"):
                found.add(node.name)
    return found


def test_each_error_has_a_line_and_each_line_an_error():
    named = {
        line[0].strip("`")
        for heading in ("Errors while training", "Errors and warnings of the patch itself")
        for line in rows(heading)
        if line[0].startswith("`")
    }
    assert len(named) > 10
    assert named == raised_classes()


def test_each_quoted_message_is_said():
    """What the page quotes of a warning stands in the source, give or take the line breaks of a string."""
    source = "\n".join(
        p.read_text(encoding="utf-8") for n in ("patcher", "replacements") for p in (ROOT / n).rglob("*.py")
    )
    text = re.sub(r'"\s*\n\s*f?"', "", source).lower()
    quoted = [line[0] for line in rows("Errors and warnings of the patch itself") if not line[0].startswith("`")]
    quoted += [line[0] for line in rows("Notices")]
    assert len(quoted) > 6
    for message in quoted:
        pieces = [piece.strip() for piece in message.lower().split("…") if piece.strip()]
        assert all(piece in text for piece in pieces), message
