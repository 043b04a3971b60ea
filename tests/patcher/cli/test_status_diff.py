"""``patcher status`` and ``patcher diff`` on the TRL that is installed."""

import json

import pytest
from typer.testing import CliRunner

import patcher
from patcher.cli.app import app


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_status_says_that_the_rewrites_are_in_place():
    result = invoke("status")
    assert result.exit_code == 0
    assert "trl.trainer.sft_trainer:SFTTrainer.__init__" in result.stdout
    assert "waiting" not in result.stdout


def test_status_as_json_is_the_status():
    data = json.loads(invoke("status", "--json").stdout)
    assert data["import_errors"] == {}
    states = {rewrite["name"]: rewrite["state"] for rewrite in data["rewrites"]}
    assert states["sft-trainer"] == "applied"
    assert states["sft-collator"] == "applied"


def test_diff_adds_lines_and_takes_none_but_the_replaced():
    result = invoke("diff", "sft-trainer")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    added = [line for line in lines if line.startswith("+") and not line.startswith("+++")]
    taken = [line for line in lines if line.startswith("-") and not line.startswith("---")]
    (rewrite,) = (rewrite for rewrite in patcher.status().rewrites if rewrite.name == "sft-trainer")
    assert len(added) == len(rewrite.edits)
    assert all("__patcher__." in line for line in added)
    assert taken == []


def test_diff_of_all_names_every_rewrite():
    data = json.loads(invoke("diff", "--json").stdout)
    assert {entry["target"] for entry in data} == {rewrite.target for rewrite in patcher.status().rewrites}
    assert all(entry["text"] for entry in data if entry["state"] == "applied")


def test_diff_of_an_unknown_rewrite_names_the_known():
    result = invoke("diff", "nosuch")
    assert "sft-trainer" in str(result.exception)
