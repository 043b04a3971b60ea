import threading

import pytest

from patcher import _importhook, _ledger, _session, _status
from patcher._errors import AnchorError
from tests.support.rewrites import edit, rewrite

RETURN = edit("return $X", "return __patcher__.add($X)", "replace")
BROKEN = edit("nothing(x)", "__patcher__.note(1)")
SOURCE = "def f(x):\n    return x\n"


def states():
    return {record.rewrite.name: _status.of(record).state for record in _session.records()}


def test_waits_for_the_module_and_imports_nothing(packages):
    packages.write({"upstream.py": SOURCE})
    _session.install([rewrite(RETURN)])
    assert "upstream" not in __import__("sys").modules
    assert states() == {"rewrite": "waiting"}
    import upstream

    assert upstream.f(1) == 1001
    assert states() == {"rewrite": "applied"}


def test_patches_at_once_what_is_imported(packages):
    module = packages.load(SOURCE)
    _session.install([rewrite(RETURN), rewrite(RETURN, target="later:f", name="second")])
    assert module.f(1) == 1001
    assert states() == {"rewrite": "applied", "second": "waiting"}
    assert packages.load(SOURCE, "later").f(1) == 1001


def test_a_required_miss_fails_the_import_each_time(packages):
    packages.write({"upstream.py": SOURCE})
    _session.install([rewrite(BROKEN)])
    for _ in range(2):
        with pytest.raises(AnchorError, match="no statement matches"):
            __import__("upstream")
    assert states() == {"rewrite": "failed"}
    _session.uninstall()
    assert __import__("upstream").f(1) == 1


def test_a_required_miss_in_an_imported_module_installs_nothing(packages):
    module = packages.load(SOURCE + SOURCE.replace("f(", "g("))
    before = module.f
    broken, late = rewrite(BROKEN, target="upstream:g", name="second"), rewrite(RETURN, target="later:f", name="third")
    with pytest.raises(AnchorError):
        _session.install([rewrite(RETURN), broken, late])
    assert module.f is before
    assert not _session.is_installed()
    assert _importhook.watched() == []
    assert packages.load(SOURCE, "later").f(1) == 1


def test_uninstall_stops_waiting_and_takes_back(packages):
    module = packages.load(SOURCE)
    before = module.f
    _session.install([rewrite(RETURN), rewrite(RETURN, target="later:f", name="second")])
    _session.uninstall()
    assert module.f is before
    assert packages.load(SOURCE, "later").f(1) == 1
    assert states() == {"rewrite": "reverted"}


def test_install_twice_is_install_once(packages):
    module = packages.load(SOURCE)
    _session.install([rewrite(RETURN)])
    first = module.f
    _session.install([rewrite(RETURN)])
    assert module.f is first


def test_a_second_install_that_fails_keeps_the_first(packages):
    module = packages.load(SOURCE + SOURCE.replace("f(", "g("))
    _session.install([rewrite(RETURN)])
    with pytest.raises(AnchorError):
        _session.install([rewrite(RETURN), rewrite(BROKEN, target="upstream:g", name="second")])
    assert module.f(1) == 1001
    assert states() == {"rewrite": "applied", "second": "failed"}
    assert _importhook.watched() == ["upstream"]


def test_what_others_wait_for_is_theirs(packages):
    packages.load(SOURCE)
    seen = []
    _importhook.watch("upstream", seen.append, "other")
    _importhook.watch("later", seen.append, "other")
    with pytest.raises(AnchorError):
        _session.install([rewrite(BROKEN), rewrite(RETURN, target="later:f", name="second")])
    _session.install([rewrite(RETURN)])
    _session.uninstall()
    assert seen == [packages.load(SOURCE, "later")]
    assert seen[0].f(1) == 1
    assert sorted(_importhook.watched()) == ["later", "upstream"]


def test_a_module_that_another_thread_is_importing_is_waited_for(packages):
    packages.write({"upstream.py": "import gate\ngate.enter()\n" + SOURCE})
    gate = packages.load("import threading\ninside, go = threading.Event(), threading.Event()\n"
                         "def enter():\n    inside.set()\n    go.wait(60)\n", "gate")  # fmt: skip
    importing = threading.Thread(target=lambda: __import__("upstream"))
    importing.start()
    gate.inside.wait(60)
    installing = threading.Thread(target=lambda: _session.install([rewrite(RETURN)]))
    installing.start()
    gate.go.set()
    importing.join()
    installing.join()
    assert __import__("upstream").f(1) == 1001


def test_installed_from_within_the_module_itself(packages):
    packages.write({"upstream.py": "import installer\n" + SOURCE})
    packages.write({"installer.py": "import hooks\nhooks.install()\n", "hooks.py": ""})
    import hooks

    from patcher._errors import PatchError

    hooks.install = lambda: _session.install([rewrite(RETURN)])
    with pytest.raises(PatchError, match="being imported by this very thread"):
        __import__("upstream")
    assert _ledger.records() == []
