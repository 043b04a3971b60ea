import json
import pickle

import pytest

from patcher._anchors import Anchor
from patcher._edits import edit_source
from patcher._errors import AnchorError
from patcher._rewrite import Edit
from tests.support.rewrites import edit, rewrite

SOURCE = """class T:
    def __init__(self, p=None):
        self.a = 1
        if p is not None:
            p = make(self)
        for i in p:
            if i is None:
                i = 0
        self.flag = p and self.a

    def other(self, p):
        return p
"""


def failure(*edits, source=SOURCE, version="9.9"):
    with pytest.raises(AnchorError) as caught:
        edit_source(source, rewrite(*edits, target="trl.x:T.__init__"), version=version)
    return caught.value


def test_the_error_names_everything():
    error = failure(edit("if p is None: ...", "__patcher__.note(p)", level="body", name="choose"))
    text = str(error)
    parts = ["trl 9.9", "trl.x:T.__init__", "'choose'", "if p is None: ...", "line 4", "PATCHER_DISABLE=1", "Upgrade"]
    for part in parts:
        assert part in text
    assert "- if p is None:" in text
    assert "+ if p is not None:" in text
    assert (error.package, error.version, error.edit, error.target) == ("trl", "9.9", "choose", "trl.x:T.__init__")
    assert error.nearest.line == 4
    assert error.nearest.text == "if p is not None:"


def test_a_match_at_another_level_is_named_as_such():
    error = failure(edit("if i is None: ...", "__patcher__.note(p)", level="body"))
    assert (error.nearest.line, error.nearest.depth, error.nearest.score) == (7, 1, 1.0)
    assert "not at level 'body'" in error.nearest.note


def test_a_match_in_another_function_is_named():
    error = failure(edit("return $X", "__patcher__.note(p)"))
    assert [(c.where, c.line) for c in error.candidates if c.note] == [("T.other", 12)]


def test_holes_do_not_count_as_differences():
    error = failure(edit("self.flags = $X", "__patcher__.note(p)"))
    assert error.nearest.line == 9
    assert error.nearest.score > 0.8


def test_each_alternative_is_shown():
    this = Edit("e", (Anchor("new(p)"), Anchor("old(p)")), "before", "__patcher__.note(p)")
    assert "anchor 0 (level any): new(p)" in str(failure(this))
    assert "anchor 1 (level any): old(p)" in str(failure(this))


def test_nothing_alike():
    error = failure(
        edit("xyzzy.qwop[42]", "__patcher__.note(p)"), source="class T:\n    def __init__(self, p):\n        pass\n"
    )
    assert error.candidates == ()
    assert error.nearest is None
    assert "nothing in the function is like it" in str(error)


def test_errors_travel():
    error = failure(edit("if p is None: ...", "__patcher__.note(p)", level="body"))
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == str(error)
    assert copy.candidates == error.candidates
    assert json.loads(json.dumps(error.to_dict()))["candidates"][0]["line"] == 4


def test_long_functions_and_patterns_do_not_stall():
    body = "".join(f"        self.x{i} = call_{i}(p, {i}, name='{'ab' * 40}')\n" for i in range(400))
    source = "class T:\n    def __init__(self, p):\n" + body
    assert failure(edit("self.$A = $F($B, $C, nome='" + "ab" * 40 + "')", "__patcher__.note(p)"), source=source).nearest
