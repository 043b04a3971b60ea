import logging
import sys

from patcher import _engine, _ledger
from tests.support.rewrites import edit, rewrite

RETURN = edit("return $X", "return __patcher__.add($X)", "replace")

FILES = {
    "upstream/__init__.py": "from .core import f, C\nfrom . import registry\n",
    "upstream/core.py": "def f(x):\n    return x\nclass C:\n    def m(self):\n        return 1\n    alias = m\n",
    "upstream/registry.py": "from .core import f as renamed\nTABLE = {'f': renamed, 'other': len}\n",
    "downstream.py": "from upstream import f as taken\n",
}


def test_every_name_in_the_package_and_the_registry(packages, caplog):
    packages.write(FILES)
    import downstream
    import upstream

    before = upstream.core.f
    this = rewrite(RETURN, target="upstream.core:f", aliases=("upstream.registry:TABLE['f']", "upstream.absent:f"))
    with caplog.at_level(logging.WARNING, "patcher"):
        _engine.apply([this])
    new = upstream.core.f
    assert new is not before
    assert upstream.f is upstream.registry.renamed is upstream.registry.TABLE["f"] is new
    # another package's own name is not ours to change: it is said
    assert downstream.taken is before
    assert _ledger.get("rewrite").outside == ["downstream:taken"]
    assert "downstream:taken" in caplog.text
    _engine.revert()
    assert upstream.f is upstream.core.f is upstream.registry.renamed is upstream.registry.TABLE["f"] is before


def test_an_alias_that_holds_something_else_is_not_touched(packages):
    packages.write(FILES)
    import upstream

    kept = upstream.registry.TABLE["other"]
    _engine.apply([rewrite(RETURN, target="upstream.core:f", aliases=("upstream.registry:TABLE['other']",))])
    assert upstream.registry.TABLE["other"] is kept


def test_an_alias_of_a_method(packages):
    packages.write(FILES)
    import upstream

    _engine.apply([rewrite(RETURN, target="upstream.core:C.m", aliases=("upstream.core:C.alias",))])
    assert upstream.C().m() == upstream.C().alias() == 1001


def test_classes_that_others_imported_see_their_method(packages):
    packages.write(FILES)
    import upstream

    held, instance = upstream.C, upstream.C()
    _engine.apply([rewrite(RETURN, target="upstream.core:C.m")])
    assert held().m() == instance.m() == 1001
    assert sys.modules["upstream"].C is held
