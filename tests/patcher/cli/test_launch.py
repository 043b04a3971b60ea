"""``patcher run``: the script must not be able to tell."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest


@pytest.fixture
def script(tmp_path):
    def write(text, name="script.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(text))
        return path

    return write


def run(*arguments, **options):
    command = [sys.executable, "-m", "patcher", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


SHOW = """
    import json, sys, patcher
    installed = patcher.status().installed
    print(json.dumps([sys.argv, sys.path[0], __name__, __file__, installed]))
"""


def test_arguments_and_module_state_are_those_of_python_script(script, tmp_path):
    path = script(SHOW)
    done = run(path, "--debug", "--help", "-m", "--", "x")
    assert done.returncode == 0, done.stderr
    argv, first, name, file, installed = json.loads(done.stdout)
    assert argv == [str(path), "--debug", "--help", "-m", "--", "x"]
    assert first == os.path.realpath(tmp_path)
    assert name == "__main__"
    assert file == str(path)
    assert installed


def test_module_runs_as_with_python_m(script, tmp_path):
    script(SHOW, "tool.py")
    done = run("-m", "tool", "-x", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    argv, first, name, file, _ = json.loads(done.stdout)
    assert argv[1:] == ["-x"]
    assert os.path.realpath(argv[0]) == os.path.realpath(tmp_path / "tool.py")
    assert os.path.realpath(first) == os.path.realpath(tmp_path)
    assert name == "__main__"
    assert os.path.basename(file) == "tool.py"


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(7)", 7), ("pass", 0), ("import sys; sys.exit('no')", 1)])
def test_exit_code_passes_through(script, text, code):
    assert run(script(text)).returncode == code


def test_exception_keeps_its_traceback_and_no_context(script):
    done = run(script("def f():\n    raise KeyError('mine')\nf()"))
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("KeyError: 'mine'")
    assert "During handling" not in done.stderr
    assert "line 2, in f" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_as_they_end_python(script, number):
    path = script("import time\nprint('up', flush=True)\ntime.sleep(60)")
    with subprocess.Popen(
        [sys.executable, "-m", "patcher", "run", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job, as CI may run this in, passes SIGINT on as ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == -number


def test_missing_script_is_one_line_and_exit_2(tmp_path):
    done = run(tmp_path / "nosuch.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no such script" in done.stderr


def test_missing_module_is_one_line_and_exit_2():
    done = run("-m", "no_such_module_here")
    assert done.returncode == 2
    assert done.stderr.startswith("patcher: no module named no_such_module_here")
    assert len(done.stderr.splitlines()) == 1


def test_runs_under_torchrun(script):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    path = script("import os, sys, patcher\nprint('rank', os.environ['RANK'], sys.argv[1:])\nsys.exit(0)")
    done = subprocess.run(
        [*torchrun, "-m", "patcher", "run", str(path), "--lr", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 ['--lr', '1']" in done.stdout
