"""The mutants are only worth something if a careless patcher fails on them: here are several."""

import ast
import random
from collections import Counter

import pytest

from patcher import rewriting
from patcher.rewriting import Anchor, AnchorError, Edit, Rewrite
from tools import drift_break, drift_check, drift_preserve
from tools.drift_check import Check
from tools.drift_subject import Subject

REWRITE = Rewrite(
    name="work",
    package="thing",
    target="thing.mod:Worker.work",
    edits=(
        Edit("check", (Anchor("if tokenizer is None: ...", level="body"),), text="__patcher__.look(self)"),
        Edit("give", (Anchor("return $OUTPUT", level="body"),), "replace", "return __patcher__.give($OUTPUT)"),
    ),
    calls={"look": "json:loads", "give": "json:loads"},
)
ENDING = Rewrite("end", "thing", "thing.mod:Worker.__init__", (Edit("end", (), "append", "__patcher__.end(self)"),),
                 {"end": "json:loads"})  # fmt: skip
SOURCE = '''
import os

class Worker:
    def __init__(self, x):
        """Set up."""
        self.x = x
        self.y = [x]

    def other(self, output):
        return output

    def work(self, tokenizer, items):
        """Do the work."""
        total = len(items)  # of all
        if tokenizer is None:
            tokenizer = dict(name="plain", size=1)
        other = os.getcwd()
        output = {"total": total, "other": other, "items": [str(item) for item in items]}
        return output
'''


@pytest.fixture(scope="module")
def subject():
    return Subject.cut(SOURCE, REWRITE)


def preserving(subject):
    return list(drift_preserve.mutants(subject, random.Random(0)))


def test_a_subject_is_the_function_and_nothing_else(subject):
    assert "import os" not in subject.text
    assert "__init__" not in subject.text
    assert subject.whole(subject.text) == SOURCE
    assert [ast.unparse(site.node).splitlines()[0] for site in subject.sites] == [
        "if tokenizer is None:",
        "return output",
    ]


def test_line_ends_of_the_wheel_do_not_matter(subject):
    assert Subject.cut(SOURCE.replace("\n", "\r\n"), REWRITE).text == subject.text


def test_every_kind_of_mutant_is_made(subject):
    kinds = Counter(kind for kind, *_ in preserving(subject))
    assert kinds.keys() >= {*drift_preserve.LAYOUT, "mixed", "CRLF", "decoy class", "moved lines", "same line"} - {
        "joined lines"  # nothing here stands on several lines
    }
    assert kinds["renamed local"] >= 2
    broken = Counter(kind for kind, *_ in drift_break.mutants(subject))
    assert broken.keys() == {
        *("removed", "duplicated", "changed", "moved to another level"),
        *("moved to another function", "moved to an inner function"),
    }


def test_layout_mutants_differ_in_text_and_not_in_meaning(subject):
    for kind, text, _ in preserving(subject):
        if kind in drift_preserve.LAYOUT:
            assert text != subject.text
            assert ast.dump(ast.parse(text)) == ast.dump(subject.tree), kind


def test_the_same_mutants_are_made_every_time(subject):
    assert preserving(subject) == preserving(subject)


@pytest.mark.parametrize("rewrite", [REWRITE, ENDING], ids=lambda rewrite: rewrite.name)
def test_the_engine_takes_all_mutants_rightly(rewrite):
    subject = Subject.cut(SOURCE, rewrite)
    check = Check(subject)
    faults = [(kind, fault) for kind, text, new in preserving(subject) if (fault := check.patched_wrongly(text, new))]
    faults += [
        (kind, fault) for kind, text, at in drift_break.mutants(subject) if (fault := check.accepted_wrongly(text, at))
    ]
    assert faults == []


def by_text(source, rewrite, **_):
    """A patcher that replaces literal text, once: what the mutants are made against."""
    if "__patcher__" in source:
        return rewriting.Edited(source, [("check", rewriting.ALREADY), ("give", rewriting.ALREADY)], 1)
    anchored, given = "        if tokenizer is None:\n", "        return output\n"
    for edit, text in (("check", anchored), ("give", given)):
        if text not in source:
            raise AnchorError("no such text", edit=edit, candidates=("near",))
    source = source.replace(anchored, "        __patcher__.look(self)\n" + anchored, 1)
    source = source.replace(given, "        return __patcher__.give(output)\n", 1)
    return rewriting.Edited(source, [("check", 0), ("give", 0)], 1)


def faults_of(patch, monkeypatch, subject):
    monkeypatch.setattr(drift_check, "edit_source", patch)
    check = Check(subject)
    found = {kind for kind, text, new in preserving(subject) if check.patched_wrongly(text, new)}
    return found, {kind for kind, text, at in drift_break.mutants(subject) if check.accepted_wrongly(text, at)}


def test_a_patcher_by_text_is_caught(monkeypatch, subject):
    refused, accepted = faults_of(by_text, monkeypatch, subject)
    assert refused >= {"tabs", "CRLF", "parentheses", "backslashes", "renamed local", "same line"}
    assert accepted >= {"duplicated"}


def test_a_patcher_that_puts_the_text_elsewhere_is_caught(monkeypatch, subject):
    real = rewriting.edit_source

    def after(source, rewrite, **options):
        edited = real(source, rewrite, **options)
        return rewriting.Edited(
            edited.text.replace("        __patcher__.look(self)\n", ""), edited.matched, edited.line
        )

    refused, _ = faults_of(after, monkeypatch, subject)
    assert "comments" in refused


def test_a_patcher_that_patches_twice_is_caught(monkeypatch, subject):
    real = rewriting.edit_source

    def forgetful(source, rewrite, **options):
        edited = real(source.replace("__patcher__.look(self)", "pass"), rewrite, **options)
        return rewriting.Edited(edited.text, [(name, 0) for name, _ in edited.matched], edited.line)

    refused, _ = faults_of(forgetful, monkeypatch, subject)
    assert "reformatted" in refused


def test_a_patcher_that_refuses_without_a_candidate_is_caught(monkeypatch, subject):
    def silent(source, rewrite, **options):
        raise AnchorError("no", edit=rewrite.edits[0].name)

    _, accepted = faults_of(silent, monkeypatch, subject)
    assert accepted >= {"duplicated", "changed"}
