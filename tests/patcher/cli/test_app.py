"""Manners of the command line: help, errors, exit codes, plain text when piped."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from patcher import PatchError
from patcher.cli import terminal
from patcher.cli.app import app

COMMANDS = ("demo", "status", "diff", "doctor", "run")


def patcher(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "patcher", *arguments], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command):
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.output


@pytest.mark.parametrize("command", ["demo", "run", "diff"])
def test_help_shows_examples_on_lines_of_their_own(command):
    lines = CliRunner().invoke(app, [command, "--help"]).output.splitlines()
    assert sum(line.strip().startswith(f"patcher {command}") for line in lines) >= 2


def test_help_loads_nothing_heavy():
    code = (
        "import sys\n"
        "sys.argv = ['patcher', '--help']\n"
        "from patcher.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'transformers', 'trl', 'datasets', 'matplotlib', 'rich', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Exit codes" in done.stdout


@pytest.mark.parametrize("arguments", [["nosuch"], ["demo", "--nosuch"], ["demo", "--steps", "1"], ["run"]])
def test_bad_usage_ends_with_2_and_says_where_help_is(arguments):
    done = patcher(*arguments)
    assert done.returncode == 2
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_is_one_line_and_debug_shows_the_traceback(tmp_path):
    taken = tmp_path / "file"
    taken.write_text("")
    done = patcher("demo", "--output", str(taken))
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"patcher: cannot write to {taken}: File exists; try: patcher demo --output FOLDER"
    ]
    assert "Traceback" in patcher("demo", "--output", str(taken), "--debug").stderr


def test_an_unexpected_error_is_one_line_with_its_type(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "debug", False)
    terminal.fail(ZeroDivisionError("a\nb"))
    assert capsys.readouterr().err == "patcher: ZeroDivisionError: a b (--debug shows where)\n"


def test_a_failed_rewrite_is_one_line_however_it_comes_out(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "debug", False)
    error = RuntimeError("Failed to import trl")
    error.__cause__ = PatchError("cannot rewrite f\n  nearest: g")
    terminal.fail(error)
    assert capsys.readouterr().err == "patcher: cannot rewrite f; try: patcher status\n"


def test_tables_and_progress_are_plain_when_piped():
    done = patcher("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_turned_off_is_said_everywhere():
    environment = {**os.environ, "PATCHER_DISABLE": "1"}
    assert "off" in patcher("status", env=environment).stdout
    done = patcher("doctor", "--json", env=environment)
    assert done.returncode == 1
    problems = [finding["what"] for finding in json.loads(done.stdout)["findings"] if finding["problem"]]
    assert problems == ["the patcher is turned off by PATCHER_DISABLE"]
