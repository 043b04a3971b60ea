"""Each thing that can be wrong gives its finding, and a sound environment none."""

from dataclasses import replace

import pytest

from patcher._status import RewriteStatus, Status
from patcher.cli.doctor.advise import advise
from patcher.cli.doctor.examine import Examination, Library

REWRITE = RewriteStatus(
    name="sft-trainer",
    target="trl.trainer.sft_trainer:SFTTrainer.__init__",
    package="trl",
    version="1.16.0",
    state="applied",
    edits=(("choose packing", 0),),
    places=("trl.trainer.sft_trainer:SFTTrainer.__init__",),
    covered=(),
    outside=(),
    reason="",
)
SOUND = Examination(
    python="3.11.7",
    devices=[],
    libraries=[Library("torch", "torch", "2.13.0+cpu", ">=2.4"), Library("trl", "trl", "1.16.0", ">=0.22")],
    kernels=[Library("fla", "flash-linear-attention", None)],
    foreign=[],
    status=Status("0.1.0", True, False, (REWRITE,)),
    import_errors={},
    settings={},
)


def with_rewrite(**changes):
    return replace(SOUND, status=replace(SOUND.status, rewrites=(replace(REWRITE, **changes),)))


def test_a_sound_environment_has_no_findings():
    assert advise(SOUND) == []


PROBLEMS = {
    "missing": (
        replace(SOUND, libraries=[Library("trl", "trl", None, ">=0.22")]),
        "trl is not installed",
        'pip install "trl>=0.22"',
    ),
    "too old": (
        replace(SOUND, libraries=[Library("trl", "trl", "0.21.0", ">=0.22")]),
        "trl 0.21.0 is not >=0.22",
        'pip install "trl>=0.22"',
    ),
    "import": (
        replace(SOUND, import_errors={"trl.trainer.sft_trainer": "ImportError: no"}),
        "cannot be imported: ImportError: no",
        "pip install --upgrade trl",
    ),
    "off": (replace(SOUND, status=replace(SOUND.status, disabled=True)), "PATCHER_DISABLE", "unset"),
    "failed": (with_rewrite(state="failed", reason="gone\nmore"), "could not be rewritten", "--upgrade trl-patcher"),
    "covered": (with_rewrite(state="covered", covered=("trl:SFTTrainer",)), "trl:SFTTrainer", "import patcher after"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_named_with_its_remedy(name):
    seen, what, remedy = PROBLEMS[name]
    (finding,) = advise(seen)
    assert finding.problem
    assert what in finding.what
    assert remedy in finding.remedy
    assert "\n" not in finding.what


REMARKS = {
    "skipped": (with_rewrite(state="skipped", reason="trl 1: cannot rewrite f\n  gone\n  more"), "rewrite f: gone"),
    "missed": (with_rewrite(edits=(("one", 0), ("two", "missed"))), "two"),
    "foreign": (replace(SOUND, foreign=[Library("unsloth", "unsloth", "2026.10.9")]), "unsloth"),
    "kernels": (replace(SOUND, devices=["a GPU"]), "no accelerated kernels"),
    "broken backend": (replace(SOUND, backends={"fla: chunk": "failed: off by 1", "b": "in use"}), "off by 1"),
    "broken kernel": (
        replace(SOUND, kernels=[Library("fla", "flash-linear-attention", "0.6.0", error="OSError: no driver")]),
        "OSError: no driver",
    ),
}


@pytest.mark.parametrize("name", REMARKS)
def test_a_remark_is_no_problem(name):
    seen, what = REMARKS[name]
    (finding,) = advise(seen)
    assert not finding.problem
    assert what in finding.what


def test_an_impossible_setting_is_a_problem_and_names_the_values(monkeypatch):
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "explode")
    (finding,) = advise(SOUND)
    assert finding.problem
    assert "pad, raise" in finding.what


def test_problems_come_first():
    seen = replace(with_rewrite(state="failed", reason="gone"), foreign=[Library("unsloth", "unsloth", "1")])
    assert [finding.problem for finding in advise(seen)] == [True, False]
