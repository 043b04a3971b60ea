import pytest

from patcher import _match
from patcher._errors import AnchorError, RewriteError
from patcher.rewriting import ALREADY, MISSED, Anchor, Edit, edit_source
from tests.support.rewrites import edit, rewrite

SOURCE = "def f(x):\n    y = g(x)\n    if x:\n        y = h(y)\n    return y\n"


def outcome(source, *edits, **more):
    return [result for _, result in edit_source(source, rewrite(*edits, **more)).matched]


def twice(source, *edits):
    once = edit_source(source, rewrite(*edits))
    again = edit_source(once.text, rewrite(*edits))
    assert again.text == once.text
    return [result for _, result in once.matched], [result for _, result in again.matched]


@pytest.mark.parametrize(
    "this",
    [
        edit("if x: ...", "__patcher__.note(x)"),
        edit("if x: ...", "__patcher__.note(x)", "after"),
        edit("if x: ...", "z = 1"),
        edit("if x: ...", "z = 1\nw = z", "after"),
        edit("y = g($A)", "y = g($A)\nz = 1", "replace"),
        edit("y = g($A)", "y = g($A, 1)", "replace", done=(Anchor("y = g($A, 1)"),)),
        edit("g($...A)", "g($...A, cut=0)", "replace"),
        edit("g(x)", "h(g(x))", "replace"),
        edit("y = $V", "y = x", "replace", "body"),
        Edit("e", (), "prepend", "z = 1"),
        Edit("e", (), "prepend", "__patcher__.note(x)"),
    ],
    ids=lambda e: f"{e.action} {e.text!r}",
)
def test_an_edit_is_made_once_however_often_asked(this):
    assert twice(SOURCE, this) == ([0], [ALREADY])


def test_append_is_made_once():
    source = SOURCE.replace("    return y\n", "")
    assert twice(source, Edit("e", (), "append", "z = 1")) == ([0], [ALREADY])


def test_a_keyword_argument_that_holds_its_old_value_is_edited_once():
    source = "def f(x):\n    return g(x, cut=x)\n"
    assert twice(source, edit("cut=$X", "cut=int($X)", "replace", "keyword")) == ([0], [ALREADY])


def test_the_same_text_elsewhere_by_chance_is_not_the_edit():
    source = "def f(x):\n    z = 1\n    y = g(x)\n    return 2 * g(y, 1) + 1\n"
    assert outcome(source, edit("return $R", "z = 1")) == [0]
    assert outcome(source, edit("g($A, 1)", "$A + 1", "replace")) == [0]


def test_done_is_asked_before_the_anchor():
    assert outcome(SOURCE, edit("if x: ...", "z = 1", done=(Anchor("y = h($A)"),))) == [ALREADY]


def test_alternatives_are_tried_in_order():
    this = Edit("e", (Anchor("y = old($X)"), Anchor("y = g($X)"), Anchor("return y")), "before", "__patcher__.note(1)")
    assert outcome(SOURCE, this) == [1]


def test_two_matches_are_an_error_and_not_a_reason_for_the_next_alternative():
    this = Edit("e", (Anchor("y = $X"), Anchor("return y")), "before", "__patcher__.note(1)")
    with pytest.raises(AnchorError, match="matches 2 times") as caught:
        outcome(SOURCE, this)
    assert [candidate.line for candidate in caught.value.candidates] == [2, 4]


def test_an_optional_edit_is_missed_or_ambiguous_without_error():
    missing, twofold = (edit(p, "__patcher__.note(1)", required=False, name=p) for p in ("nothing(x)", "y = $X"))
    assert outcome(SOURCE, missing, twofold, edit("return y", "__patcher__.note(2)")) == [MISSED, MISSED, 0]


def test_one_missing_anchor_leaves_all_edits_out():
    with pytest.raises(AnchorError):
        outcome(SOURCE, edit("return y", "__patcher__.note(1)", name="a"), edit("nothing(x)", "z = 1", name="b"))


@pytest.mark.parametrize("tail", ["    return y\n", "    if x:\n        return y\n    g(y)\n", "    raise y\n"])
def test_append_refuses_a_function_that_leaves_early(tail):
    with pytest.raises(AnchorError, match="leaves before its end") as caught:
        outcome("def f(x):\n    y = x\n" + tail, Edit("e", (), "append", "__patcher__.note(1)"))
    assert caught.value.candidates


def test_append_does_not_count_the_returns_of_nested_functions():
    source = "def f(x):\n    def g():\n        return 1\n    x.g = g\n"
    assert outcome(source, Edit("e", (), "append", "__patcher__.note(1)")) == [0]


def test_text_that_would_never_run_is_refused():
    with pytest.raises(RewriteError, match="never run"):
        outcome(SOURCE, edit("return y", "__patcher__.note(1)", "after"))


def test_a_text_that_uses_an_unknown_name_is_refused():
    with pytest.raises(AnchorError, match="uses renamed, which the function does not have"):
        outcome(SOURCE, edit("return y", "__patcher__.note(renamed)"))


@pytest.mark.parametrize(
    "text",
    [
        "__patcher__.note(x, y, a, b, os, len, __name__)",
        "t = [i for i in x]\n__patcher__.note(t)",
        "__patcher__.note((lambda q, *r: q)(x))",
        "from os import path as p\n__patcher__.note(p)",
    ],
)
def test_names_of_the_function_its_module_and_the_text_are_known(text):
    source = "import os.path\na = 1\ntry:\n    import b\nexcept ImportError:\n    b = None\n" + SOURCE
    assert outcome(source, edit("return y", text)) == [0]


def test_a_text_cannot_use_a_hole_that_the_anchor_lacks():
    with pytest.raises(RewriteError, match=r"\$MORE"):
        outcome(SOURCE, edit("return $Y", "__patcher__.note($MORE)"))


def test_functions_made_for_comparison_lack_no_field(monkeypatch):
    seen, find = [], _match.find
    monkeypatch.setattr(
        _match, "find", lambda function, *args, **more: seen.append(function) or find(function, *args, **more)
    )
    assert twice(SOURCE, edit("g(x)", "h(g(x))", "replace")) == ([0], [ALREADY])
    assert any(function.name == "_" for function in seen)
    assert all(hasattr(function, name) for function in seen for name in function._fields)
