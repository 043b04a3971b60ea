"""The anchors of the trainer rewrite on changed copies of the installed TRL's functions. Nothing of TRL is imported."""

import ast
import importlib.util
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patcher._anchors import Anchor
from patcher._edits import edit_source
from patcher._errors import AnchorError
from patcher._locate import by_name
from patcher._rewrite import Edit, Rewrite
from tests.support import mutants

BEFORE = Edit(
    "choose", (Anchor("if processing_class is None: ...", "body"),), "before", "__patcher__.choose(self, model, args)"
)
APPEND = Edit("attach", (), "append", "__patcher__.attach(self)")
REPLACE = Edit(
    "complete",
    (Anchor("return $OUT", "body", only=True),),
    "replace",
    "return __patcher__.complete(self, examples, $OUT)",
)

INIT = Rewrite("init", "trl", "trl.trainer.sft_trainer:SFTTrainer.__init__", (BEFORE, APPEND))
CALL = Rewrite("call", "trl", "trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call", (REPLACE,))


def is_anchor_of_init(node):
    return isinstance(node, ast.If) and ast.unparse(node.test).replace("not ", "") == "processing_class is None"


def is_anchor_of_call(node):
    return isinstance(node, ast.Return)


CASES = {"init": (INIT, is_anchor_of_init), "call": (CALL, is_anchor_of_call)}


@cache
def upstream(case):
    """The function in its class, without the rest of the module, so that a thousand copies take seconds."""
    (folder,) = importlib.util.find_spec("trl").submodule_search_locations
    text = Path(folder, "trainer", "sft_trainer.py").read_text(encoding="utf-8")
    outer, function = by_name(ast.parse(text), CASES[case][0].qualname)
    lines = text.splitlines(keepends=True)[function.lineno - 1 : function.end_lineno]
    return f"class {outer.name}:\n" + "".join(lines)


def calls(text):
    return text.count("__patcher__")


random_changes = st.lists(st.sampled_from(mutants.HARMLESS), max_size=3)
thorough = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


@pytest.mark.parametrize("case", CASES)
@thorough
@given(changes=random_changes, moved=st.booleans(), crlf=st.booleans(), rng=st.randoms(use_true_random=False))
def test_layout_comments_and_place_do_not_matter(case, changes, moved, crlf, rng):
    this, is_anchor = CASES[case]
    text = upstream(case)
    if moved and case == "init":
        text = mutants.move(text, rng, is_anchor)
    if case == "call":
        text = mutants.rename("output")(text, rng)
    for change in changes:
        text = change(text, rng)
    ast.parse(text)
    if crlf:
        text = mutants.carriage_returns(text, rng)
    edited = edit_source(text, this)
    assert [outcome for _, outcome in edited.matched] == [0] * len(this.edits)
    assert calls(edited.text) == len(this.edits)
    kept = [line for line in edited.text.splitlines(keepends=True) if "__patcher__" not in line]
    expected = text.splitlines(keepends=True)
    if case == "call":
        kept_set = [line for line in expected if line in set(kept)]
        assert kept == kept_set  # all but the replaced lines, as they were
    else:
        assert kept == expected
    again = edit_source(edited.text, this)
    assert not again.changed


@pytest.mark.parametrize("harm", mutants.HARMFUL, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("case", CASES)
@settings(parent=thorough, max_examples=6)
@given(changes=random_changes, rng=st.randoms(use_true_random=False))
def test_a_changed_meaning_is_loud(case, harm, changes, rng):
    this, is_anchor = CASES[case]
    text = harm(upstream(case), rng, is_anchor)
    for change in changes:
        text = change(text, rng)
    ast.parse(text)
    with pytest.raises(AnchorError) as caught:
        edit_source(text, this)
    assert caught.value.edit == this.edits[0].name
    assert case == "call" or caught.value.nearest is not None
