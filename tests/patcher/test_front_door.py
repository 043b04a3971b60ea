"""`import patcher` in fresh interpreters, with a table of rewrites that stands in for the real one."""

import json

import pytest

TABLE = """
from patcher import _session
from patcher.rewriting import Anchor, Edit, Rewrite

def this(target, **more):
    edit = Edit("edit", (Anchor("return $X"),), "replace", "return __patcher__.add($X)")
    calls = {"add": "tests.support.rewrites:add"}
    return Rewrite(target, target.partition(":")[0], target, (edit,), calls, **more)

REWRITES = (this("upstream:f"), this("unsloth_zoo:f", option="zoo"))

def install(options):
    _session.install(rewrite for rewrite in REWRITES if rewrite.option in {"", *options})

uninstall = _session.uninstall
"""

SOURCE = "def f(x):\n    return x\n"

ORDERS = ["import patcher, upstream", "import upstream, patcher", "from upstream import f; import patcher, upstream"]


@pytest.fixture
def run(packages, python):
    packages.write({"upstream.py": SOURCE, "unsloth_zoo.py": SOURCE})
    packages.write({"replacements/__init__.py": TABLE})

    def script(code, **variables):
        variables.setdefault("PATCHER_DISABLE", "")
        return python("-c", code, **variables)

    return script


@pytest.mark.parametrize("order", ORDERS)
def test_either_order(run, order):
    assert run(f"{order}\nprint(upstream.f(1))") == "1001\n"


@pytest.mark.parametrize(
    ("value", "off"), [("1", 1), ("true", 1), (" YES ", 1), ("0", 0), ("", 0), ("no", 0), ("off", 0)]
)
def test_disabled(run, value, off):
    code = "import patcher, upstream; patcher.install(); print(upstream.f(1), patcher.status().disabled)"
    assert run(code, PATCHER_DISABLE=value) == f"{1 if off else 1001} {bool(off)}\n"


@pytest.mark.parametrize("name", ["PATCHER_DISABLE", "PATCHER_ZOO"])
def test_nonsense_in_the_environment_names_cause_and_remedy(run, name):
    last = run("import patcher", fails=True, **{name: "maybe"}).splitlines()[-1]
    assert f"SettingError: {name}='maybe' is not a value it can take. Set it to one of: 0, 1." in last


def test_what_is_off_reads_no_more_of_the_environment(run):
    assert run("import patcher; print(1)", PATCHER_DISABLE="1", PATCHER_ZOO="maybe") == "1\n"


def test_import_is_light(python):
    heavy = ["torch", "transformers", "trl", "regex", "typer", "rich", "wrapt", "difflib", "logging", "numpy"]
    code = f"import sys, patcher, patcher.rewriting; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", code, PATCHER_DISABLE="") == "[]\n"


def test_uninstall_and_install_again(run):
    code = """
import upstream
before = upstream.f
import patcher
patcher.uninstall()
print(upstream.f is before, patcher.status().installed)
patcher.install()
print(upstream.f(1), patcher.status().installed)
"""
    assert run(code) == "True False\n1001 True\n"


@pytest.mark.parametrize(
    ("call", "variable", "result"),
    [
        ("", "", 1),
        ("", "1", 1001),
        ("", "no", 1),
        ("p.install(zoo=True); p.install()", "", 1001),
        ("p.uninstall(); p.install(zoo=False)", "1", 1),
        ("p.uninstall(); p.install(zoo=True)", "0", 1001),
    ],
)
def test_the_zoo_is_asked_for(run, call, variable, result):
    code = f"import patcher as p; {call or 'pass'}; import unsloth_zoo; print(unsloth_zoo.f(1))"
    assert run(code, PATCHER_ZOO=variable) == f"{result}\n"


def test_the_zoo_is_not_imported_for_anyone(run):
    code = "import patcher as p, sys; p.install(zoo=True); print('unsloth_zoo' in sys.modules, p.status())"
    assert run(code).startswith("False ")
    assert "unsloth_zoo:f: waiting" in run(code)


def test_status_reads_and_dumps(run):
    code = "import patcher, upstream, json; s = patcher.status(); print(json.dumps(s.to_dict())); print(s)"
    data, text = run(code, PATCHER_ZOO="1").split("\n", 1)
    first, second = json.loads(data)["rewrites"]
    assert (first["state"], first["edits"], first["places"]) == ("applied", [["edit", 0]], ["upstream:f"])
    assert second["state"] == "waiting"
    assert "upstream:f: applied (in place)" in text
    assert "edit (anchor 0)" in text
    assert "unsloth_zoo:f: waiting (its module is not imported yet)" in text


def test_a_miss_comes_out_of_import_patcher(run, packages):
    packages.write({"upstream.py": "def f(x):\n    pass\n"})
    assert "AnchorError: upstream: cannot rewrite upstream:f" in run("import upstream, patcher", fails=True)


def test_lazy_attributes(run, packages):
    packages.write({"replacements/packing/__init__.py": "", "replacements/packing/api.py": "check = 'checked'\n"})
    code = """
import patcher, sys
print("replacements.packing.api" in sys.modules, patcher.check, {"check", "pack", "verify"} <= set(dir(patcher)))
print(hasattr(patcher, "nothing"))
"""
    assert run(code) == "False checked True\nFalse\n"
