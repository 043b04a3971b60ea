"""What the guard says, and how often."""

import logging
import re
import string

import pytest

from replacements.packing.verdict import LEAVE, PACK, Reason, Verdict, warn_once

FACTS = {"model": "M", "detail": "D", "why": "W", "code": "C"}


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.code)
def test_a_sentence_says_what_is_so_and_what_to_do(reason):
    fields = {name for _, name, _, _ in string.Formatter().parse(reason.value) if name}
    assert fields <= FACTS.keys()
    made = Verdict.against(reason, **{name: FACTS[name] for name in fields})
    assert made.action == "pad"
    assert made.evidence.keys() == fields
    assert "{" not in made.sentence.replace("{'skip_prepare_dataset': True}", "")
    assert len(re.findall(r"[.;:] [A-Z`]|; ", made.sentence + " ")) >= 1, "one sentence says why, another what to do"
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", reason.code)


def test_codes_and_sentences_differ():
    assert len({reason.code for reason in Reason}) == len({reason.value for reason in Reason}) == len(Reason)


def test_one_warning_for_each_reason(caplog):
    first = Verdict.against(Reason.LEAK, model="A", detail="x")
    second = Verdict.against(Reason.LEAK, model="B", detail="y")
    other = Verdict.against(Reason.PROBE_FAILED, model="A", detail="x")
    with caplog.at_level(logging.WARNING, logger="patcher"):
        for made in (first, first, second, other):
            warn_once(made)
    assert [record.name for record in caplog.records] == ["patcher", "patcher"]
    assert "[leak]: A was probed" in caplog.records[0].getMessage()
    assert "[probe-failed]" in caplog.records[1].getMessage()


def test_no_reason_no_warning(caplog):
    for made in (PACK, LEAVE):
        warn_once(made)
    assert not caplog.records
