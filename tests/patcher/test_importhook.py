import importlib
import importlib.util
import sys
import threading

import pytest
import wrapt

from patcher import _importhook


def test_called_after_the_module_ran(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", lambda module: seen.append((module.__name__, module.x)), "tests")
    assert seen == []
    import upstream

    assert seen == [("upstream", 1)]
    assert type(upstream.__loader__).__module__ != _importhook.__name__
    assert upstream.__spec__.loader is upstream.__loader__


def test_a_submodule_of_a_package(packages):
    packages.write({"upstream/__init__.py": "", "upstream/inner.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream.inner", seen.append, "tests")
    import upstream

    assert seen == []
    import upstream.inner

    assert seen == [upstream.inner]


def test_what_the_hook_raises_comes_out_of_every_import(packages):
    packages.write({"upstream.py": "x = 1\n"})

    def fail(module):
        raise ValueError("no place for it")

    _importhook.watch("upstream", fail, "tests")
    for _ in range(2):
        with pytest.raises(ValueError, match="no place"):
            importlib.import_module("upstream")
        assert "upstream" not in sys.modules


def test_cancelled(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", seen.append, "tests")
    _importhook.watch("other", seen.append, "tests")
    _importhook.unwatch("upstream", "tests")
    importlib.import_module("upstream")
    assert seen == []
    assert _importhook._finder in sys.meta_path
    _importhook.unwatch("other", "tests")
    assert _importhook._finder not in sys.meta_path


def test_cancelled_between_finding_and_running(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", seen.append, "tests")
    spec = importlib.util.find_spec("upstream")
    _importhook.unwatch("upstream", "tests")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert seen == []


def test_reload_reports_again(packages):
    seen = []
    packages.write({"upstream.py": "x = 1\n"})
    _importhook.watch("upstream", seen.append, "tests")
    importlib.reload(importlib.import_module("upstream"))
    assert len(seen) == 2


@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_wrapts_hooks(packages, monkeypatch, ours_first):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", lambda module: seen.append("ours"), "tests")
    wrapt.register_post_import_hook(lambda module: seen.append("theirs"), "upstream")
    rest = [finder for finder in sys.meta_path if finder is not _importhook._finder]
    path = [_importhook._finder, *rest] if ours_first else [rest[0], _importhook._finder, *rest[1:]]
    monkeypatch.setattr(sys, "meta_path", path)
    assert "wrapt" in type(rest[0]).__module__
    importlib.import_module("upstream")
    assert sorted(seen) == ["ours", "theirs"]


def test_find_spec_alone_reports_nothing(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", seen.append, "tests")
    assert importlib.util.find_spec("upstream").origin.endswith("upstream.py")
    assert importlib.util.find_spec("absent_module_of_tests") is None
    assert seen == []


def test_the_loader_answers_for_the_modules_own(packages):
    packages.write({"upstream.py": "x = 1\n"})
    _importhook.watch("upstream", lambda module: None, "tests")
    assert importlib.util.find_spec("upstream").loader.get_source("upstream") == "x = 1\n"


def test_two_threads_report_once(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen, start = [], threading.Barrier(4)
    _importhook.watch("upstream", seen.append, "tests")

    def work():
        start.wait()
        importlib.import_module("upstream")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1


def test_a_loader_that_cannot_report_is_named(packages, caplog, monkeypatch):
    class Silent:
        def load_module(self, name):
            raise NotImplementedError

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            return importlib.util.spec_from_loader(name, Silent(), origin="x") if name == "upstream" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    _importhook.watch("upstream", lambda module: None, "tests")
    assert importlib.util.find_spec("upstream").origin == "x"
    assert "upstream is loaded by Silent" in caplog.text


def test_hooks_of_two_owners(packages):
    packages.write({"upstream.py": "x = 1\n"})
    seen = []
    _importhook.watch("upstream", lambda module: seen.append("first"), "first")
    _importhook.watch("upstream", lambda module: seen.append("replaced"), "second")
    _importhook.watch("upstream", lambda module: seen.append("second"), "second")
    importlib.import_module("upstream")
    assert seen == ["first", "second"]
    _importhook.unwatch("upstream", "first")
    importlib.reload(sys.modules["upstream"])
    assert seen == ["first", "second", "second"]
    _importhook.unwatch("upstream", "second")
    assert _importhook.watched() == []
    assert _importhook._finder not in sys.meta_path
