from pathlib import Path

import pytest

from patcher import rewriting

ROOT = Path(__file__).parents[2]


def test_all_that_is_named_is_there():
    assert all(getattr(rewriting, name) is not None for name in rewriting.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = rewriting.nothing


@pytest.mark.parametrize("folder", ["docs", "tools", "replacements"])
def test_who_writes_rewrites_needs_no_private_module(folder):
    private = [f"patcher._{name}" for name in ("anchors", "edits", "errors", "rewrite")]
    for path in (path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md")):
        text = path.read_text("utf-8")
        assert not [name for name in private if f"from {name} import" in text], path
