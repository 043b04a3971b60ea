import ast
import textwrap

import pytest

from patcher._anchors import Anchor
from patcher._errors import RewriteError
from patcher._match import find


def function(source):
    return ast.parse(textwrap.dedent(source)).body[0]


def lines(source, pattern, level="any"):
    return [match.place.line for match in find(function(source), Anchor(pattern, level))]


def captures(source, pattern, level="any"):
    (match,) = find(function(source), Anchor(pattern, level))
    return match.captures


@pytest.mark.parametrize(
    "statement",
    [
        'x = call(a, "b", k=1)',
        "x = call(a, 'b', k=1)  # noqa: F841",
        "x = call(\n        a,\n        'b',  # why\n        k=1,\n    )",
        "x = (call(a, 'b', k=1))",
        "x=call( a,'b',k = 1 )",
        "x = call(a, '' 'b', k=0x1)",
        "x = \\\n        call(a, 'b', k=1)",
    ],
)
def test_layout_is_not_meaning(statement):
    assert lines(f"def f(a):\n    {statement}\n", "x = call(a, 'b', k=1)") == [2]


@pytest.mark.parametrize(
    "statement",
    [
        "x = call(a, 'b', k=2)",
        "y = call(a, 'b', k=1)",
        "x = call('b', a, k=1)",
        "x += call(a, 'b', k=1)",
        "x = call(a, 'b')",
    ],
)
def test_meaning_is_compared(statement):
    assert lines(f"def f(a):\n    {statement}\n", "x = call(a, 'b', k=1)") == []


@pytest.mark.parametrize(
    "value", ["y", "y.z[0]", "g(1, 2)", "(1, 2)", "[')', '(']", "lambda a, b: a", "x if y else (z)"]
)
def test_a_hole_takes_one_balanced_expression(value):
    got = captures(f"def f():\n    return {value}\n", "return $OUT")["OUT"]
    assert ast.dump(ast.parse(got)) == ast.dump(ast.parse(value))


def test_a_hole_takes_neither_two_arguments_nor_half_an_operation():
    assert lines("def f():\n    g(1, 2)\n    g(3)\n", "g($X)") == [3]
    assert lines("def f():\n    r = a * b + c\n    r = a * (b + c)\n", "r = a * $X") == [3]


def test_the_same_hole_twice_is_the_same_text():
    assert lines("def f():\n    x = g(a, a)\n    x = g(a, b)\n", "x = g($A, $A)") == [2]


def test_a_split_between_two_holes_follows_precedence():
    assert captures("def f():\n    return x + y + z\n", "return $A + $B") == {"A": "x + y", "B": "z"}


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("g($...)", [2, 3, 4, 5]),
        ("g(a, $...)", [3, 4, 5]),
        ("g($..., k=1)", [5]),
        ("g(a, $..., k=1)", [5]),
        ("g($..., k=1, $...)", [4, 5]),
        ("g(a, k=$V, $...)", [4]),
    ],
)
def test_a_rest_takes_any_list_of_arguments(pattern, found):
    source = "def f():\n    g()\n    g(a)\n    g(a, k=1, z=(2, 3))\n    g(a, b, j=[1, 2], k=1)\n"
    assert lines(source, pattern) == found


def test_a_named_rest_is_captured():
    assert captures("def f():\n    g(a, b, k=1)\n", "g(a, $...REST)") == {"REST": "b, k=1"}


def test_compound_statements_match_by_header():
    source = """
    def f(x):
        if x is None:
            x = 1
        if x is None and y:
            pass
        elif x is None:
            pass
        if x is None:
            return 2
        else:
            return 3
    """.strip("\n")
    assert lines(source, "if x is None: ...") == [2, 8]
    assert lines(source, "if x is None: x = 1") == [2]
    assert lines(source, "if x is None: return $R\nelse: return 3") == [8]


def test_levels():
    source = "def f():\n    return a\n    if b:\n        return c\n"
    assert lines(source, "return $OUT", "body") == [2]
    assert lines(source, "return $OUT") == [2, 4]


def test_an_only_match_of_the_body_counts_deeper_ones_too():
    alone, early, deep = (
        function(f"def f():\n    {body}\n") for body in ("return a", "if b: return c\n    return a", "if b: return c")
    )
    this = Anchor("return $OUT", "body", only=True)
    assert [len(find(each, this)) for each in (alone, early, deep)] == [1, 2, 0]


def test_nested_functions_and_classes_are_other_functions():
    source = """
    def f():
        def g():
            return 1
        class C:
            x = 1
        h = lambda: call()
        return 2
    """.strip("\n")
    assert lines(source, "return $OUT") == [7]
    assert lines(source, "x = 1") == []
    assert lines(source, "call()") == [6]


def test_expressions_are_found_wherever_they_stand():
    source = """
    def f():
        x = [call(1)]
        if call(2):
            pass
        elif call(3):
            with call(4):
                pass
        try:
            pass
        except call(5):
            pass
        match call(6):
            case _ if call(7):
                pass
    """.strip("\n")
    assert lines(source, "call($N)") == [2, 3, 5, 6, 10, 12, 13]


def test_keyword_arguments():
    source = "def f():\n    truncation = a\n    g(truncation=a,)\n    h(padding=a)\n"
    assert lines(source, "truncation=$V", "keyword") == [3]


def test_runs_of_statements():
    source = "def f():\n    a = 1\n    b = 2\n    if x:\n        a = 1\n        c = 3\n        b = 2\n"
    assert lines(source, "a = 1\nb = $N") == [2]


@pytest.mark.parametrize("pattern", ["$X", "$...", "", "if x", "f(", "f(a b)"])
def test_a_bad_pattern_is_refused(pattern):
    with pytest.raises(RewriteError):
        find(function("def f():\n    g()\n"), Anchor(pattern))


def test_strings_with_brackets_do_not_unbalance():
    source = "def f():\n    g('(((', \"it's\", f'{x[\"a\"]})')\n"
    assert lines(source, "g($A, $B, $C)") == [2]


def test_a_statement_of_another_kind_with_the_same_text_is_not_it():
    # `x: int` and a slice, `async for` and `for`: the kind of node is compared too
    assert lines("def f():\n    x[a:b]\n", "x[a:b]") == [2]
    assert lines("async def f():\n    async for x in y: pass\n    for x in y: pass\n", "for x in y: ...") == [3]


def test_f_strings_are_not_entered():
    assert lines("def f(x):\n    y = f'{g(x)}'\n    g(x)\n", "g($X)") == [3]
