import json
import subprocess
import threading
import zipfile
from pathlib import Path

import pytest

from tools import _wheels

METADATA = """Metadata-Version: 2.1
Name: thing
Version: 1.0
Requires-Python: >=3.10
Requires-Dist: other>=2
Requires-Dist: extra-only; extra == "more"
Requires-Dist: never; python_version < "3"
"""


def write_wheel(folder: Path, version: str, files: dict[str, str]) -> Path:
    path = folder / f"thing-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"thing-{version}.dist-info/METADATA": METADATA}.items():
            archive.writestr(name, text)
    return path


class FakePip:
    """Stands in for pip: lists releases, and 'downloads' those it has."""

    def __init__(self, versions, has=None, knows_json=True):
        self.versions, self.has, self.knows_json = versions, versions if has is None else has, knows_json
        self.calls, self.lock = [], threading.Lock()

    def __call__(self, *arguments, python=None):
        with self.lock:
            self.calls.append(arguments)
        if arguments[0] == "index":
            return self.index(arguments)
        version = arguments[-1].partition("==")[2]
        if version not in self.has:
            return self.done(1, "", f"WARNING: x\nERROR: No matching distribution found for thing=={version}\n")
        write_wheel(Path(arguments[arguments.index("--dest") + 1]), version, {})
        return self.done(0)

    def index(self, arguments):
        if "--json" in arguments and not self.knows_json:
            return self.done(2, "", "no such option: --json")
        if "--json" in arguments:
            return self.done(0, json.dumps({"name": "thing", "versions": self.versions}))
        return self.done(0, f"thing (9)\nAvailable versions: {', '.join(self.versions)}\n  INSTALLED: 1\n")

    def done(self, code, out="", err=""):
        return subprocess.CompletedProcess([], code, out, err)


@pytest.fixture
def pip(monkeypatch):
    def use(*args, **kwargs):
        fake = FakePip(*args, **kwargs)
        monkeypatch.setattr(_wheels, "pip", fake)
        return fake

    return use


@pytest.mark.parametrize("knows_json", [True, False])
def test_releases_come_from_the_index_oldest_first(pip, knows_json):
    fake = pip(["1.10.0", "1.9.0", "1.2.0rc1", "1.2.0", "0.9"], knows_json=knows_json)
    assert _wheels.releases("thing", "1.0") == ["1.2.0", "1.9.0", "1.10.0"]
    assert _wheels.releases("thing", "1.0", "1.9.0", pre=True) == ["1.2.0rc1", "1.2.0", "1.9.0"]
    assert ["--pre" in call for call in fake.calls][-1]


def test_an_unreachable_index_is_an_error_that_names_the_cause(monkeypatch):
    done = subprocess.CompletedProcess(
        [], 1, "", "WARNING: retrying\nERROR: No matching distribution found for thing\n"
    )
    monkeypatch.setattr(_wheels, "pip", lambda *_, **__: done)
    with pytest.raises(_wheels.WheelError, match=r"thing: ERROR: No matching distribution"):
        _wheels.releases("thing")


def test_a_wheel_is_downloaded_once_and_alone(pip, tmp_path):
    fake = pip(["1.0"])
    first = _wheels.fetch("thing", "1.0", tmp_path)
    assert _wheels.fetch("thing", "1.0.0", tmp_path) == first  # the same version, spelt longer
    assert len(fake.calls) == 1
    assert "--no-deps" in fake.calls[0]
    assert list(first.parent.iterdir()) == [first]  # nothing half downloaded lies beside it


def test_a_release_without_a_wheel_does_not_stop_the_others(pip, tmp_path):
    pip(["1.0", "1.1", "1.2"], has=["1.0", "1.2"])
    ticks = []
    found = _wheels.fetch_all([("thing", "1.0"), ("thing", "1.1"), ("thing", "1.2")], tmp_path, lambda: ticks.append(1))
    assert [type(value).__name__ for value in found.values()] == ["PosixPath", "WheelError", "PosixPath"]
    assert "thing 1.1: ERROR: No matching" in str(found["thing", "1.1"])
    assert len(ticks) == 3


def test_reading_keeps_line_ends_and_finds_packages(tmp_path):
    wheel = write_wheel(tmp_path, "1.0", {"thing/__init__.py": "a = 1\r\n", "thing/sub/part.py": "b = 2\n"})
    assert _wheels.read(wheel, "thing") == "a = 1\r\n"
    assert _wheels.read(wheel, "thing.sub.part") == "b = 2\n"
    assert _wheels.read(wheel, "thing.missing") is None


def test_requirements_leave_out_extras_and_other_platforms(tmp_path):
    python, needs = _wheels.requirements(write_wheel(tmp_path, "1.0", {}))
    assert python == ">=3.10"
    assert [str(need) for need in needs] == ["other>=2"]


def test_a_broken_wheel_says_what_to_do(tmp_path):
    path = tmp_path / "thing-1.0-py3-none-any.whl"
    path.write_bytes(b"not a zip")
    with pytest.raises(_wheels.WheelError, match="delete it"):
        _wheels.read(path, "thing")


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _wheels.cache_root() == tmp_path / "trl-patcher"
    assert _wheels.cache_root(tmp_path / "own") == tmp_path / "own"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _wheels.cache_root() == Path.home() / ".cache" / "trl-patcher"
