import pytest

import patcher
from replacements.packing.runtime import detach_all


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    for name in ("PATCHER_ON_UNSAFE", "PATCHER_HYBRID_PACKING"):
        monkeypatch.delenv(name, raising=False)
    patcher.install()
    yield
    detach_all()
    patcher.uninstall()
