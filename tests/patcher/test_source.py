import importlib
import linecache
import py_compile
import sys
import types
import zipfile

import pytest

from patcher import _engine, _ledger, _source
from patcher._errors import SourceUnavailable
from tests.support.rewrites import edit, rewrite

RETURN = edit("return $X", "return __patcher__.add($X)", "replace")
SOURCE = "def f(x):\n    return x\n"


def refused(match):
    """Applying raises, and leaves function and ledger as they were."""
    module = sys.modules["upstream"]
    before = module.f
    with pytest.raises(SourceUnavailable, match=match) as caught:
        _engine.apply([rewrite(RETURN)])
    assert "upstream:f" in str(caught.value)
    assert module.f is before
    assert _ledger.get("rewrite").state == _ledger.FAILED


def test_the_whole_module_is_the_source(packages):
    module = packages.load("import os\n\n" + SOURCE)
    got = _source.of(module.f, "f")
    assert (got.text, got.line, got.name) == ("import os\n\n" + SOURCE, 3, "f")


def test_byte_code_only(packages):
    packages.write({"upstream.py": SOURCE})
    py_compile.compile(str(packages.folder / "upstream.py"), cfile=str(packages.folder / "upstream.pyc"))
    (packages.folder / "upstream.py").unlink()
    importlib.import_module("upstream")
    refused("only byte code is installed")


def _zipped(packages, monkeypatch, member):
    archive = packages.folder / "bundle.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.write(packages.folder / member, member)
        (packages.folder / member).unlink()
    monkeypatch.syspath_prepend(str(archive))
    return importlib.import_module("upstream")


def test_zip_with_source_works(packages, monkeypatch):
    packages.write({"upstream.py": SOURCE})
    module = _zipped(packages, monkeypatch, "upstream.py")
    _engine.apply([rewrite(RETURN)])
    assert module.f(1) == 1001


def test_zip_without_source(packages, monkeypatch):
    packages.write({"upstream.py": SOURCE})
    py_compile.compile(str(packages.folder / "upstream.py"), cfile=str(packages.folder / "upstream.pyc"))
    (packages.folder / "upstream.py").unlink()
    _zipped(packages, monkeypatch, "upstream.pyc")
    refused("the zip archive that it was imported from holds no source")


def _executed(filename, source=SOURCE):
    module = types.ModuleType("upstream")
    module.__fake__ = True
    sys.modules["upstream"] = module
    exec(compile(source, filename, "exec"), vars(module))
    return module


def test_exec_without_text(packages):
    _executed("<string>")
    refused("no file or notebook cell holds")


def test_frozen(packages):
    _executed("<frozen upstream>")
    refused("frozen")


def test_a_notebook_cell_works(packages):
    name = "<ipython-input-3-abcdef>"
    linecache.cache[name] = (len(SOURCE), None, SOURCE.splitlines(True), name)
    module = _executed(name)
    _engine.apply([rewrite(RETURN)])
    assert module.f(1) == 1001


def test_a_notebook_cell_that_was_run_again_with_other_text(packages):
    name = "<ipython-input-4-abcdef>"
    linecache.cache[name] = (0, None, ["def f(x):\n", "    return -x\n"], name)
    _executed(name)
    refused("does not compile to the loaded code")


def test_an_empty_file(packages):
    packages.load(SOURCE)
    (packages.folder / "upstream.py").write_text("")
    refused("empty")


def test_a_missing_file(packages):
    module = packages.load(SOURCE)
    (packages.folder / "upstream.py").unlink()
    module.__loader__ = module.__spec__.loader = None
    refused("is not there")


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return x - 1\n",
        "def f(x):\n    return -x\n",
        "# moved\ndef f(x):\n    return x\n",
        "def g(x):\n    return x\n",
        "def f(y):\n    return y\n",
        "def f(x):\n    return (lambda: x)()\n",
        "def f(x:\n",
    ],
)
def test_a_file_that_changed_after_import(packages, text):
    packages.load(SOURCE)
    (packages.folder / "upstream.py").write_text(text)
    refused("changed after it was imported")


def test_a_change_elsewhere_in_the_file_does_not_matter(packages):
    module = packages.load(SOURCE + "y = 1\n")
    (packages.folder / "upstream.py").write_text(SOURCE + "y = 2\nz = 3\n")
    _engine.apply([rewrite(RETURN)])
    assert module.f(1) == 1001


@pytest.mark.parametrize("source", [SOURCE.replace("\n", "\r\n"), "# -*- coding: latin-1 -*-\n" + SOURCE])
def test_line_ends_and_encodings(packages, source):
    module = packages.load(source)
    _engine.apply([rewrite(RETURN)])
    assert module.f(1) == 1001


def test_a_lambda(packages):
    packages.load("f = lambda x: x\n")
    refused("lambda")


@pytest.mark.parametrize("value", ["len", "str.upper"])
def test_what_is_not_a_python_function(value):
    with pytest.raises(SourceUnavailable, match="built in or compiled"):
        _source.of(eval(value), "upstream:f")


def test_constants_that_compare_equal_are_told_apart(packages):
    packages.load("def f(x):\n    return (1, 0.0)\n")
    (packages.folder / "upstream.py").write_text("def f(x):\n    return (True, -0.0)\n")
    refused("changed after it was imported")
