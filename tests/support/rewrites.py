"""Short ways to write rewrites in tests."""

from patcher.rewriting import Anchor, Edit, Rewrite

CALLS = {"note": "tests.support.rewrites:note", "add": "tests.support.rewrites:add"}

notes = []


def note(*values):
    """Remembers what injected text passed on."""
    notes.append(values)


def add(value):
    """A visible change of a value."""
    return value + 1000


def edit(pattern, text, action="before", level="any", name="edit", **more):
    """An edit with one anchor."""
    return Edit(name, (Anchor(pattern, level),), action, text, **more)


def rewrite(*edits, target="upstream:f", name="rewrite", **more):
    """A rewrite of ``upstream.f`` unless told otherwise."""
    more.setdefault("calls", CALLS)
    return Rewrite(name, target.partition(":")[0].partition(".")[0], target, edits, **more)
