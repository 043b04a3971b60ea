import ast

import pytest

from patcher import _proof
from patcher._errors import RewriteError
from patcher._normalform import statements
from patcher._splice import Operation

SOURCE = "def f(x):\n    a = 1\n    return x\n"


def check(text, action="before"):
    tree = ast.parse(SOURCE)
    place = list(statements(tree.body[0]))[1]
    _proof.check(tree, text, [Operation(place, action, "b = 2")])


@pytest.mark.parametrize(
    "text", ["def f(x):\n    a = 1\n    b = 2\n    return x\n", "def f(x): a = 1; b = 2; return x"]
)
def test_the_edit_and_nothing_else_passes(text):
    check(text)


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        "def f(x):\n    b = 2\n    a = 1\n    return x\n",
        "def f(x):\n    a = 1\n    if x:\n        b = 2\n    return x\n",
        "def f(x):\n    a = 1\n    b = 2\n    return x\ny = 1\n",
        "def f(x):\n    a = 1\n    b = 2\n",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(RewriteError, match="more than the edits ask for"):
        check(text)


def test_text_that_does_not_parse_is_refused():
    with pytest.raises(RewriteError, match="does not parse"):
        check("def f(x):\n    a = 1\n  b = 2\n")


def test_the_action_counts():
    with pytest.raises(RewriteError):
        check("def f(x):\n    a = 1\n    b = 2\n    return x\n", "replace")
    check("def f(x):\n    a = 1\n    b = 2\n", "replace")
    check("def f(x):\n    a = 1\n    return x\n    b = 2\n", "after")
