"""docs/training-stack.md says what the tests show: each test it names exists, each test of the stack is named."""

import ast
import re
from pathlib import Path

from replacements.packing.verdict import Reason

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/training-stack.md").read_text(encoding="utf-8")


def rows():
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line[:2] == "| "]
    return [row for row in cells if row[0] not in ("combination", "---")]


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}


def test_each_test_that_is_named_exists():
    named = re.findall(r"`(\S+?)::(\w+)`", PAGE)
    assert len(named) > 50
    for path, name in named:
        assert name.startswith("test_")
        assert name in functions_of(TESTS / path), f"{path}::{name}"


def test_each_combination_is_shown_or_says_why_not():
    for combination, comes_to, *shown in rows():
        assert "::" in "".join(shown) or "not tried" in comes_to, combination


def test_each_test_of_the_stack_is_named():
    for path in (TESTS / "stack").glob("test_*.py"):
        missing = {f"stack/{path.name}::{name}" for name in functions_of(path) if name.startswith("test_")}
        assert {name for name in missing if f"`{name}`" not in PAGE} == set()


def test_codes_are_the_guards():
    codes = [code for row in rows() for code in re.findall(r"^(?:padded|refused), `([\w-]+)`", row[1])]
    assert codes
    assert set(codes) <= {reason.code for reason in Reason}
