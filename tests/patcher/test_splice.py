"""Through `edit_source`, which also proves each splice against the tree."""

import difflib

import pytest

from patcher._edits import edit_source
from patcher._errors import RewriteError
from patcher._rewrite import Edit
from tests.support.rewrites import edit, rewrite

NOTE = "__patcher__.note(1)"


def spliced(source, *edits, target="upstream:f"):
    return edit_source(source, rewrite(*edits, target=target)).text


def test_before_a_statement_keeps_its_comment_and_indentation():
    source = "def f(x):\n    # why\n    if x:  # noqa\n        g()\n"
    want = f"def f(x):\n    # why\n    {NOTE}\n    if x:  # noqa\n        g()\n"
    assert spliced(source, edit("if x: ...", NOTE)) == want


def test_after_a_compound_statement_stands_after_its_suite():
    source = "def f(x):\n    if x:\n        g()\n    else:\n        h()\n    # end\n    k()\n"
    want = source.replace("    # end\n", f"    {NOTE}\n    # end\n")
    assert spliced(source, edit("if x: ...", NOTE, "after")) == want


def test_replace_keeps_the_comment_behind():
    source = "def f(x):\n    return x  # done\n"
    assert spliced(source, edit("return $X", "return __patcher__.add($X)", "replace")) == (
        "def f(x):\n    return __patcher__.add(x)  # done\n"
    )


def test_replace_of_a_statement_over_lines():
    source = "def f(x):\n    y = g(\n        x,  # one\n    )\n    return y\n"
    assert spliced(source, edit("y = g($X)", "y = 1", "replace")) == "def f(x):\n    y = 1\n    return y\n"


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_line_ends_are_kept(newline):
    source = "def f(x):\n    g()\n    if x:\n        h()\n".replace("\n", newline)
    got = spliced(source, edit("if x: ...", f"{NOTE}\n__patcher__.note(2)"))
    want = f"def f(x):\n    g()\n    {NOTE}\n    __patcher__.note(2)\n    if x:\n        h()\n"
    assert got == want.replace("\n", newline)


def test_columns_are_bytes():
    source = "def f(x):\n    é = 'ünï'; return g('žluťoučký', x)  # kůň\n"
    got = spliced(source, edit("g($S, $X)", "__patcher__.add($X)", "replace"))
    assert got == "def f(x):\n    é = 'ünï'; return __patcher__.add(x)  # kůň\n"


def test_other_line_separators_are_no_line_ends():
    source = "s = '\u2028\x0b'\n\x0c\ndef f(x):\n    t = '\u2028'\n    return x\n"
    assert spliced(source, edit("return x", NOTE)) == source.replace("    return", f"    {NOTE}\n    return")


def test_a_byte_order_mark_stays():
    source = "\ufeffdef f(x):\n    return x\n"
    assert spliced(source, edit("return x", NOTE)) == f"\ufeffdef f(x):\n    {NOTE}\n    return x\n"


def test_tabs():
    source = "def f(x):\n\tif x:\n\t\treturn x\n"
    got = spliced(source, edit("return x", "if x:\n    __patcher__.note(1)"))
    assert got == "def f(x):\n\tif x:\n\t\tif x:\n\t\t    __patcher__.note(1)\n\t\treturn x\n"


@pytest.mark.parametrize(
    ("action", "want"),
    [
        ("before", f"def f(x):\n    a = 1; {NOTE}; b = 2; c = 3\n"),
        ("after", f"def f(x):\n    a = 1; b = 2; {NOTE}; c = 3\n"),
        ("replace", f"def f(x):\n    a = 1; {NOTE}; c = 3\n"),
    ],
)
def test_statements_on_one_line(action, want):
    assert spliced("def f(x):\n    a = 1; b = 2; c = 3\n", edit("b = 2", NOTE, action)) == want


@pytest.mark.parametrize("action", ["before", "after", "replace"])
@pytest.mark.parametrize(
    "statement", ["a = 1; b = 2;", "b = 2; a = 1", "b = 2;  # c", "if x: b = 2", "if x: a = 1; b = 2"]
)
def test_semicolons_and_one_line_suites_are_proved(statement, action):
    source = f"def f(x):\n    {statement}\n    return x\n"
    assert NOTE in spliced(source, edit("b = 2", NOTE, action))


def test_a_one_line_suite_stays_conditional():
    assert (
        spliced("def f(x):\n    if x: b = 2\n", edit("b = 2", NOTE, "after")) == f"def f(x):\n    if x: b = 2; {NOTE}\n"
    )


def test_a_block_cannot_share_a_line():
    with pytest.raises(RewriteError, match="several statements"):
        spliced("def f(x):\n    a = 1; b = 2\n", edit("b = 2", "if x:\n    __patcher__.note(1)"))


@pytest.mark.parametrize("action", ["before", "after", "replace"])
def test_line_continuations(action):
    source = "def f(x):\n    a = 1; \\\n    b = \\\n        2\n    if x: \\\n        c = 3\n    return x\n"
    assert NOTE in spliced(source, edit("b = 2", NOTE, action))
    assert NOTE in spliced(source, edit("c = 3", NOTE, action))


def test_before_a_decorated_definition():
    source = "def f(x):\n    @x\n    # c\n    @x.y\n    def g(): ...\n    return g\n"
    got = spliced(source, edit("@$A\n@$B\ndef g(): ...", NOTE))
    assert got == source.replace("    @x\n", f"    {NOTE}\n    @x\n")


def test_strings_over_lines_in_the_text_are_not_indented():
    text = 'x = """a\n  b\n"""\n__patcher__.note(x)'
    got = spliced("def f(x):\n    if x:\n        return x\n", edit("return x", text))
    assert got == 'def f(x):\n    if x:\n        x = """a\n  b\n"""\n        __patcher__.note(x)\n        return x\n'


def test_an_inner_expression_is_replaced_as_a_unit():
    source = "def f(x):\n    return 2 * g(x) + 1\n"
    assert spliced(source, edit("g($X)", "$X + 1", "replace")) == "def f(x):\n    return 2 * (x + 1) + 1\n"


def test_an_inner_expression_cannot_become_a_statement():
    with pytest.raises(RewriteError, match="only be replaced by an expression"):
        spliced("def f(x):\n    return g(x)\n", edit("g($X)", "y = 1", "replace"))


def test_an_expression_statement_can():
    assert (
        spliced("def f(x):\n    g(x)\n", edit("g($X)", "y = $X\nz = y", "replace"))
        == "def f(x):\n    y = x\n    z = y\n"
    )


def test_a_keyword_argument():
    source = "def f(x):\n    g(x,\n      cut = x,  # c\n      y=1)\n"
    got = spliced(source, edit("cut=$X", "cut=__patcher__.add($X)", "replace", "keyword"))
    assert got == source.replace("cut = x", "cut=__patcher__.add(x)")


def test_append_and_prepend():
    source = 'def f(x):\n    """Doc."""\n    g(x)\n    # tail\n\n\ny = 1\n'
    got = spliced(source, Edit("p", (), "prepend", NOTE), Edit("a", (), "append", "__patcher__.note(2)"))
    assert got == (f'def f(x):\n    """Doc."""\n    {NOTE}\n    g(x)\n    __patcher__.note(2)\n    # tail\n\n\ny = 1\n')


@pytest.mark.parametrize(
    "source", ["def f(x): pass", "def f(x):\n    pass", 'def f(x):\n    "doc"', "def f(x): g(); h();"]
)
@pytest.mark.parametrize("action", ["append", "prepend"])
def test_append_and_prepend_in_small_bodies(source, action):
    got = spliced(source, Edit("e", (), action, NOTE))
    assert NOTE in got


def test_edits_at_one_place_keep_their_order():
    source = "def f(x):\n    g()\n    return x\n"
    got = spliced(
        source,
        edit("g()", "__patcher__.note(1)", name="1"),
        edit("g()", "__patcher__.note(2)", name="2"),
        edit("g()", "__patcher__.note(3)", "after", name="3"),
        edit("g()", "__patcher__.note(4)", "after", name="4"),
        edit("g()", "g(0)", "replace", name="5"),
    )
    numbers = [line.strip() for line in got.splitlines()[1:-1]]
    assert numbers == [
        "__patcher__.note(1)",
        "__patcher__.note(2)",
        "g(0)",
        "__patcher__.note(3)",
        "__patcher__.note(4)",
    ]


def test_overlapping_edits_are_refused():
    with pytest.raises(RewriteError, match="overlap"):
        spliced(
            "def f(x):\n    return g(x)\n",
            edit("return $X", "return 1", "replace", name="1"),
            edit("g($X)", "2", "replace", name="2"),
        )


def test_untouched_lines_are_the_same_bytes():
    source = "import os \t\n\n\ndef f( x ,):  # odd\n\n    y = [x,\n\n  1]\n    return   y   \n\n\n\nz = 1"
    got = spliced(source, edit("return $X", NOTE))
    added = [d for d in difflib.ndiff(source.splitlines(True), got.splitlines(True)) if d[0] in "+-"]
    assert added == [f"+     {NOTE}\n"]
