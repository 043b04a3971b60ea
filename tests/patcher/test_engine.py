import functools
import importlib
import inspect
import logging
import pickle
import sys
import threading

import pytest

from patcher import _engine, _ledger, _recompile, _status
from patcher._errors import AnchorError, PatchError, RewriteError, TargetMissing
from patcher._places import AttributePlace
from tests.support.rewrites import edit, rewrite

RETURN = edit("return $X", "return __patcher__.add($X)", "replace")
MISSING = edit("nothing(x)", "__patcher__.note(1)", name="missing")
TWO = "def f(x):\n    return x\n\n\ndef g(x):\n    return x\n"
WRAPPED_IN_AN_ATTRIBUTE = "def g(x):\n    return x\ndef f(x):\n    return f.__wrapped__(x)\nf.__wrapped__ = g\n"


def state(name="rewrite"):
    return _status.of(_ledger.get(name)).state


def test_applied_and_taken_back_by_identity(packages):
    module = packages.load("class C:\n    def f(self):\n        return 1\n    g = staticmethod(f)\n")
    before = dict(vars(module.C))
    _engine.apply([rewrite(RETURN, target="upstream:C.f")])
    assert module.C().f() == 1001
    _engine.revert()
    assert all(vars(module.C)[name] is value for name, value in before.items() if name != "__dict__")
    assert state() == "reverted"


def test_asking_twice_changes_nothing(packages):
    module = packages.load(TWO)
    _engine.apply([rewrite(RETURN)])
    first = module.f
    _engine.apply([rewrite(RETURN)])
    assert module.f is first
    assert module.f(1) == 1001


def test_again_after_taking_back(packages):
    module = packages.load(TWO)
    before = module.f
    for _ in range(3):
        _engine.apply([rewrite(RETURN)])
        assert module.f(1) == 1001
        _engine.revert()
        assert module.f is before


def test_a_required_miss_leaves_every_target_as_it_was(packages):
    module = packages.load(TWO)
    before = module.f, module.g
    with pytest.raises(AnchorError):
        _engine.apply([rewrite(RETURN), rewrite(MISSING, target="upstream:g", name="second")])
    assert (module.f, module.g) == before
    assert state("second") == "failed"
    assert _ledger.get("rewrite") is None


def test_a_failure_while_putting_in_place_is_rolled_back(packages, monkeypatch):
    module = packages.load(TWO)
    before = module.f, module.g
    put = AttributePlace.set

    def failing(place, value):
        if place.name == "g" and _recompile.is_rewritten(value):
            raise RuntimeError("no")
        put(place, value)

    monkeypatch.setattr(AttributePlace, "set", failing)
    with pytest.raises(RuntimeError):
        _engine.apply([rewrite(RETURN), rewrite(RETURN, target="upstream:g", name="second")])
    assert (module.f, module.g) == before
    assert not [record for record in _ledger.records() if record.active]


def test_an_optional_edit_that_misses_warns_once_with_what_is_lost(packages, caplog):
    module = packages.load(TWO)
    this = rewrite(edit("nothing(x)", "y = 1", required=False, lost="the frobnication", name="frob"), RETURN)
    with caplog.at_level(logging.WARNING, "patcher"):
        for _ in range(2):
            _engine.apply([this])
            _engine.revert()
    assert [r.name for r in caplog.records] == ["patcher"]
    assert "'frob'" in caplog.text
    assert "Lost: the frobnication." in caplog.text
    _engine.apply([this])
    assert module.f(1) == 1001
    assert _ledger.get("rewrite").edits == [("frob", "missed"), ("edit", 0)]


def test_an_optional_rewrite_is_left_out_with_a_warning(packages, caplog):
    module = packages.load(TWO)
    optional = rewrite(MISSING, name="optional", required=False, lost="little")
    with caplog.at_level(logging.WARNING, "patcher"):
        _engine.apply([optional, rewrite(RETURN, target="upstream:g")])
    assert module.g(1) == 1001
    assert state("optional") == "skipped"
    assert "Lost: little." in caplog.text
    assert "no statement matches the anchor" in caplog.text


def test_left_alone_while_its_owner_is_loaded(packages):
    module = packages.load(TWO)
    _engine.apply([rewrite(RETURN, unless=("json",))])
    assert module.f(1) == 1
    assert state() == "left alone"


def test_threads_patch_once(packages):
    module = packages.load(TWO)
    start, seen, errors = threading.Barrier(8), [], []

    def work():
        start.wait()
        try:
            _engine.apply([rewrite(RETURN)])
            seen.append(module.f)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(set(map(id, seen))) == 1
    assert module.f(1) == 1001


def test_what_another_library_put_on_top_stays_and_is_said(packages, caplog):
    module = packages.load(TWO)
    _engine.apply([rewrite(RETURN)])
    ours = module.f
    module.f = top = lambda x: ours(x) + 1
    _engine.apply([rewrite(RETURN)])
    assert module.f is top
    assert state() == "covered"
    _engine.revert()
    assert module.f is top
    assert state() == "stuck"
    assert "cannot be taken back" in caplog.text
    module.f = ours
    _engine.apply([rewrite(RETURN)])
    assert state() == "applied"
    _engine.revert()
    assert state() == "reverted"
    assert module.f(1) == 1


def test_a_covering_that_hides_what_it_wraps(packages):
    module = packages.load(TWO)
    _engine.apply([rewrite(RETURN)])
    module.f = top = lambda x: x
    _engine.apply([rewrite(RETURN)])
    assert module.f is top
    assert state() == "covered"


def test_in_a_wrapper_that_shows_what_it_wraps_the_original_is_put_back(packages):
    module = packages.load(TWO)
    original = module.f
    _engine.apply([rewrite(RETURN)])

    def wrapped(inner):
        return functools.wraps(inner)(lambda x: inner(x) + 1)

    module.f = module.alias = top = wrapped(module.f)
    assert (module.f(1), state()) == (1002, "covered")
    for _ in range(2):
        _engine.revert()
        assert (module.f, module.f(1), top.__wrapped__, state()) == (top, 2, original, "reverted")
        _engine.apply([rewrite(RETURN)])
        assert (module.f, module.f(1), state()) == (top, 1002, "applied")


def test_of_two_places_one_of_which_holds_another_function(packages):
    module = packages.load(TWO + "alias = f\n")
    _engine.apply([rewrite(RETURN)])
    inner = module.f
    module.f, module.alias = functools.wraps(inner)(lambda x: inner(x) + 1), module.g
    _engine.revert()
    assert (module.f(1), module.alias, state()) == (2, module.g, "stuck")


def test_a_note_and_upstreams_text_while_it_is_in_place(packages):
    module = packages.load(TWO)
    this = rewrite(RETURN, note="shared with another", shows_upstream=True)
    _engine.apply([this])
    assert module.f(1) == 1001
    assert _ledger.get("rewrite").reason == "shared with another"
    assert inspect.getsource(module.f) == "def f(x):\n    return x\n"
    _engine.revert()
    assert _ledger.get("rewrite").reason == ""


def test_stepping_aside_for_a_library_that_comes_later(packages, monkeypatch):
    module = packages.load(TWO)
    original = module.f, module.g
    mine = [rewrite(RETURN, unless=("owner",)), rewrite(RETURN, target="upstream:g", name="second")]
    _engine.apply(mine)
    monkeypatch.setitem(sys.modules, "owner", module)
    _engine.step_aside("owner")
    assert (state(), state("second")) == ("left alone", "applied")
    assert (module.f is original[0], module.g is original[1]) == (True, False)


def test_a_wrapper_that_was_there_first_keeps_its_place(packages):
    module = packages.load(TWO)
    inner = module.f
    module.f = top = functools.wraps(inner)(lambda x: inner(x) + 1)
    _engine.apply([rewrite(RETURN)])
    assert module.f is top
    assert module.f(1) == 1002
    _engine.revert()
    assert module.f is top
    assert module.f(1) == 2
    assert top.__wrapped__ is inner


def test_a_reloaded_module_is_patched_again(packages):
    module = packages.load("class C:\n    def f(self):\n        return 1\n")
    this = rewrite(RETURN, target="upstream:C.f")
    _engine.apply([this])
    importlib.reload(module)
    assert module.C().f() == 1
    _engine.apply([this])
    assert module.C().f() == 1001


def test_a_module_that_is_not_imported(packages):
    with pytest.raises(PatchError, match="not imported"):
        _engine.apply([rewrite(RETURN, target="absent_module:f")])


@pytest.mark.parametrize("target", ["upstream:h", "upstream:C.f", "upstream:D.f", "upstream:D"])
def test_a_missing_target(packages, target):
    packages.load("class B:\n    def f(self):\n        return 1\nclass D(B):\n    pass\n")
    with pytest.raises(TargetMissing, match=r"does not exist|has no|inherits it from upstream.B|not a function"):
        _engine.apply([rewrite(RETURN, target=target)])


UNMADE = {
    "no such function": ("upstream:h", "def f(x):\n    return x\n", "a release of upstream that it knows"),
    "no such class": ("upstream:C.f", "def f(x):\n    return x\n", "a release of upstream that it knows"),
    "inherited": ("upstream:D.f", "class B:\n    def f(self): pass\nclass D(B): pass\n", "Import patcher before"),
    "lambda": ("upstream:f", "f = lambda x: x\n", "a release of upstream that it knows"),
    "not a function": ("upstream:f", "f = print\n", "Import patcher before"),
    "hidden": ("upstream:f", WRAPPED_IN_AN_ATTRIBUTE, "Import patcher before"),
    "not loaded": ("absent:f", "", "Import absent first"),
    "an anchor": ("upstream:f", "def f(x): pass\n", "a release of upstream that it knows"),
}


@pytest.mark.parametrize("case", UNMADE)
def test_whatever_cannot_be_made_names_release_function_and_remedy(packages, monkeypatch, case):
    target, source, remedy = UNMADE[case]
    monkeypatch.setattr(_engine, "package_version", {"upstream": "1.2.3", "absent": "1.2.3"}.get)
    packages.load(source)
    with pytest.raises(PatchError) as caught:
        _engine.apply([rewrite(RETURN, target=target)])
    package = target.partition(":")[0]
    first, *_, last = str(caught.value).splitlines()
    assert first == f"{package} 1.2.3: cannot rewrite {target}"
    assert last.startswith("  Nothing was changed. ")
    assert remedy in last
    assert last.endswith("or set PATCHER_DISABLE=1 to run without it.")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value) == _ledger.get("rewrite").reason


def test_a_function_that_shows_the_text_but_lost_its_cell_gets_it_back(packages):
    # a tool that copies functions by their source takes the text along and not the closure
    module = packages.load("def f(x):\n    return __patcher__.add(x)\n")
    with pytest.raises(NameError):
        module.f(1)
    _engine.apply([rewrite(RETURN)])
    assert module.f(1) == 1001
    assert _ledger.get("rewrite").edits == [("edit", "already there")]


def test_the_call_is_imported_at_first_use(packages):
    module = packages.load(TWO)
    packages.write({"late_runtime.py": "def act(x):\n    return -x\n"})
    this = rewrite(edit("return $X", "return __patcher__.act($X)", "replace"), calls={"act": "late_runtime:act"})
    _engine.apply([this])
    assert "late_runtime" not in __import__("sys").modules
    assert module.f(3) == -3


def test_an_unknown_call_says_what_there_is(packages):
    module = packages.load(TWO)
    _engine.apply([rewrite(edit("return x", "__patcher__.absent(x)"))])
    with pytest.raises(AttributeError, match=r"'rewrite' gives its text no 'absent': \['add', 'note'\]"):
        module.f(1)


def test_two_rewrites_of_one_function_are_refused(packages):
    module = packages.load(TWO)
    before = module.f
    with pytest.raises(RewriteError, match="both change upstream:f"):
        _engine.apply([rewrite(RETURN), rewrite(RETURN, name="second")])
    assert module.f is before
    _engine.apply([rewrite(RETURN)])
    with pytest.raises(RewriteError, match="both change upstream:f"):
        _engine.apply([rewrite(RETURN, name="second")])
    assert module.f(1) == 1001


def test_the_work_of_another_copy_of_the_engine_is_known(packages, monkeypatch):
    module = packages.load(TWO)
    _engine.apply([rewrite(RETURN)])
    ours = module.f
    records = _ledger._records
    monkeypatch.setattr(_ledger, "_records", {})
    _engine.apply([rewrite(RETURN)])
    assert module.f is ours
    assert state() == "applied"
    assert "another copy" in _ledger.get("rewrite").reason
    _engine.revert()
    assert state() == "stuck"
    monkeypatch.setattr(_ledger, "_records", records)
