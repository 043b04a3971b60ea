import configparser
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from tools import _wheels, matrix, matrix_judge, matrix_lanes, matrix_layers
from tools.matrix_lanes import CI, FULL, Lane

LANE = Lane("1.16.0", "5.24.0", ("qwen3_next",))
GOOD = {"error": None, "where": None, "packed": True, "loss": 1e-6, "gradient": 2e-6, "evaluation": None, "notes": []}
LEAK = GOOD | {"loss": 0.02, "gradient": 1.1}


def result(patched, stock=LEAK, family="qwen3_next", scenario="packing"):
    return {"runs": [{"family": family, "scenario": scenario, "stock": stock, "patched": patched}], "versions": {}}


def raised(text, where="trl/trainer/sft_trainer.py:compute_loss"):
    return GOOD | {"error": text, "where": where, "loss": None, "gradient": None, "packed": False}


def status(*args, lane=LANE, **kwargs):
    return matrix_judge.judge(lane, result(*args, **kwargs)).status


def test_a_lane_is_right_only_within_the_tolerance():
    assert status(GOOD) == matrix_judge.OK
    assert status(GOOD | {"loss": 2e-4}) == matrix_judge.FAILS
    assert status(GOOD | {"gradient": 2e-4}) == matrix_judge.FAILS
    assert status(GOOD | {"evaluation": 2e-4}) == matrix_judge.FAILS


def test_a_family_that_must_pack_may_not_be_padded():
    padded = GOOD | {"packed": False, "notes": ["because"]}
    verdict = matrix_judge.judge(LANE, result(padded))
    assert verdict.status == matrix_judge.FAILS
    assert "because" in verdict.reasons[0]
    assert status(padded, family="minimax") == matrix_judge.OK


def test_an_error_with_the_patch_fails_even_where_stock_raises_the_same():
    error = raised("ValueError: can't keep packed sequences apart")
    assert status(error, stock=error) == matrix_judge.FAILS


def test_only_the_known_failure_of_trl_itself_excuses_a_lane():
    lane, where = Lane("1.15.0", "5.24.0"), "trl/trainer/utils.py:_fused_forward"
    known = raised("AttributeError: 'NoneType' object has no attribute 'apply'", where)
    assert status(known, stock=known, lane=lane) == matrix_judge.CANNOT
    assert "triton" in matrix_judge.judge(lane, result(known, stock=known)).reasons[0]
    assert status(known, stock=known) == matrix_judge.FAILS  # another release
    assert status(raised("KeyError: 'x'"), stock=known, lane=lane) == matrix_judge.FAILS  # another failure
    assert status(GOOD, lane=lane) == matrix_judge.OK


def test_refusing_is_right_only_where_it_may_be_and_only_with_our_error():
    refused = raised("PackingRefusedError: mixed")
    assert status(refused, scenario="eval_packing alone") == matrix_judge.OK
    assert status(raised("ValueError: x"), scenario="eval_packing alone") == matrix_judge.FAILS
    assert status(refused) == matrix_judge.FAILS


def test_a_lane_that_trained_nothing_fails():
    assert matrix_judge.judge(LANE, {"runs": [], "versions": {}}).status == matrix_judge.FAILS


def test_the_tables_show_every_lane():
    verdicts = [matrix_judge.judge(LANE, result(GOOD)), matrix_judge.judge(Lane("1.9.2", "5.9.0"), result(LEAK))]
    text = matrix_judge.markdown(verdicts)
    assert "| TRL | 5.9.0 | 5.24.0 |" in text
    assert "| 1.9.2 | ✗ |  |" in text
    assert "| trl-1.16.0-tf-5.24.0 | qwen3_next | packed, WRONG: loss 0.02, gradient 1.1 | packed, 2e-06 |" in text
    assert matrix_judge.table(verdicts).row_count == 2


def test_two_lanes_of_one_pair_share_a_cell_and_hide_nothing():
    lanes = Lane("1.15.0", "5.24.0"), Lane("1.15.0", "5.24.0", beside=(("triton", "3.9.0"),))
    verdicts = [matrix_judge.Verdict(lanes[0], matrix_judge.CANNOT, ["why"]), matrix_judge.Verdict(lanes[1], "ok")]
    assert "| 1.15.0 | –, ✓ with triton |" in matrix_judge.markdown(verdicts)


def test_the_ci_lanes_cover_every_range_and_generation():
    assert len(CI) >= 8
    ranges = ["0.22.0", "0.23.1", "0.27.0", "0.29.0", "1.0.0", "1.4.0", "1.7.0", "1.10.0", "1.15.0", "1.16.0"]
    bounds = [*map(Version, ranges), Version("99")]
    for low, high in itertools.pairwise(bounds):
        assert any(low <= Version(lane.trl) < high for lane in CI), f"no lane in {low} – {high}"
    for low, high in (("4.57", "5.0"), ("5.0", "5.15"), ("5.15", "5.20"), ("5.20", "99")):
        assert any(Version(low) <= Version(lane.transformers) < Version(high) for lane in CI)
    methods = [
        lane for lane in CI if Version(lane.transformers) < Version("5.15") and {"lfm2", "mamba2"} & {*lane.families}
    ]
    assert methods  # the generation with a pair of methods
    assert {lane.name for lane in CI} <= {lane.name for lane in FULL}
    assert len(FULL) == len({lane.name for lane in FULL}) == len(matrix_lanes.TRL) * len(matrix_lanes.TRANSFORMERS) + 1


def test_scenarios_and_families_of_the_lanes_exist():
    from tests.matrix import smoke
    from tools.tiny_models import FAMILIES

    assert {extra for lane in FULL for extra in lane.extras} <= smoke.SCENARIOS.keys()
    assert {family for lane in FULL for family in lane.families} <= FAMILIES.keys()
    assert smoke.SCENARIOS.keys() >= matrix_lanes.MAY_REFUSE


def test_a_layer_is_installed_once(monkeypatch, tmp_path):
    calls = []

    def pip(*arguments, python):
        calls.append(arguments)
        target = arguments[arguments.index("--target") + 1]
        subprocess.run(["mkdir", "-p", f"{target}/thing"], check=True)
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setattr(_wheels, "pip", pip)
    monkeypatch.setattr(_wheels, "fetch", lambda *_: tmp_path / "thing-1-py3-none-any.whl")
    first = matrix_layers.layer("thing", "1", tmp_path, sys.executable)
    assert matrix_layers.layer("thing", "1", tmp_path, sys.executable) == first
    assert (first / "thing").is_dir()
    assert len(calls) == 1
    assert "--no-deps" in calls[0]


def test_pins_that_do_not_install_together_are_told(monkeypatch, tmp_path):
    from packaging.requirements import Requirement

    needs = {"trl": [Requirement("transformers>=6")]}
    monkeypatch.setattr(_wheels, "fetch", lambda package, *_: package)
    monkeypatch.setattr(_wheels, "requirements", lambda package: (None, needs.get(package, [])))
    assert matrix_layers.conflicts(LANE, tmp_path) == ["trl 1.16.0 needs transformers>=6, the lane has 5.24.0"]


@pytest.fixture
def program(monkeypatch, tmp_path):
    """Puts another program in the place of a lane's, on an empty path."""
    monkeypatch.setattr(matrix_layers, "conflicts", lambda *_: [])
    monkeypatch.setattr(matrix_layers, "path_of", lambda *_: [])

    def use(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        monkeypatch.setattr(matrix, "SMOKE", path)

    return use


def run(*arguments):
    return CliRunner().invoke(matrix.app, [LANE.name, *arguments])


def test_the_program_runs_a_lane_and_writes_the_result(program, tmp_path):
    program(f"import json; print('noise'); print(json.dumps({result(GOOD)!r}))")
    done = run("--out", str(tmp_path / "out"))
    assert done.exit_code == 0
    assert json.loads((tmp_path / "out" / "matrix.json").read_text("utf-8"))[0]["status"] == "ok"
    assert "1 passed, 0 failed" in done.output


def test_lanes_that_did_not_run_keep_their_result(tmp_path):
    other = Lane("1.9.2", "5.9.0")
    matrix.write([matrix_judge.judge(other, result(LEAK)), matrix_judge.judge(LANE, result(LEAK))], tmp_path)
    matrix.write([matrix_judge.judge(LANE, result(GOOD))], tmp_path)
    rows = json.loads((tmp_path / "matrix.json").read_text("utf-8"))
    assert [(row["lane"], row["status"]) for row in rows] == [(other.name, "fails"), (LANE.name, "ok")]
    assert "| 1.9.2 | ✗ |  |" in (tmp_path / "matrix.md").read_text("utf-8")


def test_a_lane_that_dies_fails_with_its_last_words(program):
    program("raise SystemExit('no module named torch')")
    done = run()
    assert done.exit_code == 1
    assert "no module named torch" in done.output


def test_a_lane_that_hangs_is_given_up(program):
    program("import threading; threading.Event().wait(60)")
    done = run("--timeout", "0.5")
    assert done.exit_code == 1
    assert "no result within 0.5 s" in done.output


def test_an_unknown_lane_is_refused():
    assert CliRunner().invoke(matrix.app, ["trl-0.1-tf-0.1"]).exit_code == 2


def test_tox_has_the_same_grid():
    """The lanes with an environment each are those that `python -m tools.matrix` runs as layers."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(Path(matrix.__file__).parents[1] / "setup.cfg", "utf-8")
    trl, transformers = re.fullmatch(r"trl\{(.+)\}-tf\{(.+)\}", settings["tox:tox"]["env_list"]).groups()
    assert tuple(trl.split(",")) == matrix_lanes.TRL
    assert transformers.split(",") == list(matrix_lanes.TRANSFORMERS)
    deps = settings["testenv"]["deps"].split("\n")
    for name, short, releases in (("trl", "trl", matrix_lanes.TRL), ("transformers", "tf", matrix_lanes.TRANSFORMERS)):
        assert [line for line in deps if f": {name}==" in line] == [f"{short}{r}: {name}=={r}" for r in releases]
    older = [release for release, beside in matrix_lanes.TRANSFORMERS.items() if beside["datasets"] == "4.8.5"]
    assert f"tf{{{','.join(older)}}}: datasets==4.8.5" in deps
    newest = {beside["datasets"] for release, beside in matrix_lanes.TRANSFORMERS.items() if release not in older}
    assert len(newest) == 1  # what pip takes where nothing is asked for
