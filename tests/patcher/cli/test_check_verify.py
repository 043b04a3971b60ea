"""`patcher check` and `patcher verify` as commands: exit codes, JSON, one line for an error."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from patcher.cli.app import app
from patcher.cli.errors import FAILED, NO, OK, CliError
from tests.support.models import tiny_model, token_documents
from tests.support.training import tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    tiny_model("lfm2").save_pretrained(made)
    tiny_tokenizer().save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "documents.jsonl"
    lines = [json.dumps({"input_ids": document.tolist()}) for document in token_documents([9, 17, 5])]
    path.write_text("\n".join(lines))
    return path


def patcher(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_check_packs(folder):
    done = patcher("check", folder)
    assert done.exit_code == OK, done.output
    assert "Safe to pack with the patch" in done.output
    assert "Lfm2ShortConv" in done.output


def test_check_pads_in_json(tmp_path):
    tiny_model("minimax").config.save_pretrained(tmp_path)
    done = patcher("check", tmp_path / "config.json", "--json")
    assert done.exit_code == NO, done.output
    found = json.loads(done.stdout)
    assert (found["verdict"], found["reason"]) == ("pad", "unsupported-mixer")


def test_check_of_nothing(tmp_path):
    done = patcher("check", tmp_path / "nowhere")
    assert isinstance(done.exception, CliError)


def test_verify(folder, data, tmp_path):
    done = patcher("verify", "--model", folder, "--data", data, "--plot", tmp_path / "p.png")
    assert done.exit_code == OK, done.output
    assert "All 3 documents are packed what they are alone" in done.output
    assert (tmp_path / "p.png").exists()


def test_verify_in_json(folder, data):
    done = patcher("verify", "--model", folder, "--data", data, "--json", "--limit", "2", "--no-gradients")
    found = json.loads(done.stdout)
    assert found["passed"]
    assert len(found["documents"]) == 2
    assert found["documents"][1]["patched"]["gradient"] is None


@pytest.mark.parametrize("wrong", ["model", "data"])
def test_verify_with_nothing(folder, data, tmp_path, wrong):
    given = {"model": folder, "data": data, wrong: tmp_path / "nowhere"}
    done = patcher("verify", "--model", given["model"], "--data", given["data"])
    assert isinstance(done.exception, CliError)


def test_verify_without_weights_or_a_place_for_the_picture(folder, data, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    done = patcher("verify", "--model", tmp_path, "--data", data)
    assert "has no weights" in str(done.exception)
    done = patcher("verify", "--model", folder, "--data", data, "--plot", tmp_path / "nowhere" / "p.png")
    assert "there is no folder" in str(done.exception)


REFUSING = """
import socket, sys

def refuse(*args, **kwargs):
    raise OSError("no network here")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
import time
time.sleep = lambda seconds: None
from patcher.cli import main
sys.argv = ["patcher", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", [["check"], ["verify", "--data", "documents.txt", "--model"]])
def test_without_a_network_one_line_says_so(command, tmp_path):
    """In a process of its own: what the libraries print while they try again is no part of the answer."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    done = subprocess.run(
        [sys.executable, "-c", REFUSING, *command, "nobody/has-this-model"],
        env=environment | {"HF_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == FAILED
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "the hub cannot be reached; try: " in line
