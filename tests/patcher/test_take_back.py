"""Taking back a function that others took after it was rewritten."""

import pytest

from patcher import _engine, _ledger
from tests.support.rewrites import edit, rewrite

SOURCE = "def f(x):\n    return x\n"


@pytest.fixture
def upstream(packages):
    packages.write({"upstream/__init__.py": SOURCE, "upstream/late.py": "from upstream import f\nTABLE = {'f': f}\n"})
    import upstream

    yield upstream
    _engine.revert()


def applied(**more):
    change = edit("return $X", "return __patcher__.add($X)", "replace")
    (record,) = _engine.apply([rewrite(change, **more)])
    return record


def test_a_module_that_took_it_later_gets_the_original_back(upstream):
    original = upstream.f
    applied(aliases=("upstream.late:TABLE['f']",))
    from upstream import late

    assert late.f(1) == late.TABLE["f"](1) == 1001
    (record,) = _engine.revert()
    assert record.state == _ledger.REVERTED
    assert upstream.f is late.f is late.TABLE["f"] is original
