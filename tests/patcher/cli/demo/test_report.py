"""The verdict, the numbers and the picture, from made-up measurements."""

import builtins
import json
import math
from dataclasses import replace

import pytest

from patcher.cli.demo import command, picture
from patcher.cli.demo.isolation import Outcome
from patcher.cli.demo.report import Report, Run
from patcher.cli.demo.training import Curve


def report(patched=((0.0, 2e-6), (1e-6,)), **changes):
    packed = Curve(tokens=[100, 200, 300], loss=[7.0, 6.0, 5.0], clock=[9.0, 10.0, 11.0])
    padded = Curve(tokens=[110, 210, 310], loss=[7.0, 6.0, 5.0], clock=[9.0, 11.0, 13.0])
    values = {
        "parameters": 2_000_000,
        "documents": 3,
        "tokens": 300,
        "documents_a_step": 3.2,
        "stock": Outcome(None, "ValueError: can't keep packed sequences apart"),
        "stock_positions": Outcome([[0.0, 1.5], [0.3]]),
        "patched": Outcome([list(row) for row in patched]),
        "packed": Run(packed, 5.5),
        "padded": Run(padded, 5.6),
        "seconds": 20.0,
    }
    return Report(**{**values, **changes})


@pytest.mark.parametrize(
    ("patched", "isolated"),
    [(((0.0, 9e-5),), True), (((0.0, 1.1e-4),), False), (((0.0, math.inf),), False)],
)
def test_isolated_to_the_limit_and_not_by_what_is_infinite(patched, isolated):
    assert report(patched).isolated is isolated


def test_a_patched_model_that_refuses_is_not_isolated():
    assert not replace(report(), patched=Outcome(None, "ValueError: no")).isolated


def test_speed_leaves_the_first_step_out():
    assert report().packed.curve.tokens_per_second == 100
    assert report().padded.curve.tokens_per_second == 50
    assert report().speed_up == 2


def test_json_is_complete_and_plain():
    data = json.loads(json.dumps(report().as_json()))
    assert data["isolated"] is True
    assert data["stock"]["error"].startswith("ValueError")
    assert data["stock_position_ids_only"]["largest_delta_log_prob"] == 1.5
    assert data["packed"]["held_out_loss"] == 5.5
    assert data["padded"]["real_tokens"] == 310


def test_picture_is_written(tmp_path):
    path = tmp_path / "demo.png"
    picture.draw(report(), path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 200_000


def _run(tmp_path, monkeypatch, capsys, found, **options):
    monkeypatch.setattr(command.experiment, "run", lambda settings, output, progress: found)
    code = command.run(tmp_path, "tiny", **{"steps": None, "seed": 0, "plot": True, "as_json": False, **options})
    return code, capsys.readouterr()


def test_command_writes_both_files_and_says_so(tmp_path, monkeypatch, capsys):
    code, printed = _run(tmp_path, monkeypatch, capsys, report())
    assert code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"demo.png", "report.json"}
    assert "2.00x" in printed.out
    assert "keeps the documents apart" in printed.out


def test_command_ends_with_1_when_documents_mix(tmp_path, monkeypatch, capsys):
    code, printed = _run(tmp_path, monkeypatch, capsys, report(((0.5,),)), plot=False)
    assert code == 1
    assert "MIXES" in printed.out
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_without_matplotlib_only_the_picture_is_missing(tmp_path, monkeypatch, capsys):
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    code, printed = _run(tmp_path, monkeypatch, capsys, report(), as_json=True)
    assert code == 0
    assert printed.err == "patcher: no picture without matplotlib; try: pip install matplotlib\n"
    assert json.loads(printed.out)["isolated"]
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
