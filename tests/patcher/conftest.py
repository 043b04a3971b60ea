"""A clean engine and throw-away packages for each test."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from patcher import _importhook, _ledger, _log, _session


@pytest.fixture(autouse=True)
def clean_engine(request, monkeypatch):
    """The tests' rewrites, hooks and warnings are their own; what `import patcher` installed stays as it is."""
    if request.path.parent != Path(__file__).parent:
        yield  # the command line's tests speak of the real ones
        return
    from patcher import _engine

    watched = dict(_importhook._hooks)
    monkeypatch.setattr(_session, "_installed", {})
    monkeypatch.setattr(_ledger, "_records", {})
    monkeypatch.setattr(_log, "_said", set())
    monkeypatch.setattr(_importhook, "_hooks", {})
    yield
    _engine.revert()
    if not watched and _importhook._finder in sys.meta_path:
        sys.meta_path.remove(_importhook._finder)
    elif watched and _importhook._finder not in sys.meta_path:
        sys.meta_path.insert(0, _importhook._finder)


class Packages:
    """Writes packages to a folder on sys.path and imports them."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(textwrap.dedent(text).encode())
        importlib.invalidate_caches()

    def load(self, source: str, name: str = "upstream"):
        """Imports a module of that source."""
        self.write({f"{name}.py": source})
        return importlib.import_module(name)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield Packages(tmp_path)
    for name in set(sys.modules) - before:
        module = sys.modules[name]
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)) or hasattr(module, "__fake__"):
            del sys.modules[name]


@pytest.fixture
def python(packages):
    """Runs a fresh interpreter and returns what it prints; the packages can be imported there."""

    def run(*arguments: str, fails: bool = False, **variables: str) -> str:
        environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        environment |= {"PATCHER_DISABLE": "1", "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
            cwd=packages.folder,
        )
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr if fails else done.stdout

    return run
