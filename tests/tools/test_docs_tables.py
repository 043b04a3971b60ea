"""The generated pages say what the results say."""

import pytest

from tools import docs_tables
from tools.drift_scan import FOUND, MISS


@pytest.mark.parametrize("path", docs_tables.pages(), ids=lambda path: path.name)
def test_the_pages_are_up_to_date(path):
    assert path.read_text("utf-8") == docs_tables.pages()[path], "python -m tools.docs_tables"


def row(family, release, patched, result):
    return {"family": family, "transformers": release, "patched": patched, "result": result}


def test_a_family_counts_by_its_worst_outcome():
    census = [
        *(row("bamba", "5.9.0", False, result) for result in ("raises", "leaks")),
        *(row("bamba", "5.9.0", True, result) for result in ("isolated", "padded")),
        *(row("bamba", "5.24.0", patched, "isolated") for patched in (False, True)),
        *(row("bamba", "4.57.6", patched, "absent") for patched in (False, True)),
    ]
    assert "| family | 4.57.6 | 5.9.0 | 5.24.0 |" in docs_tables.families(census)
    assert "| bamba | – | leaks → padded | right → packs |" in docs_tables.families(census)


def test_a_leak_with_the_patch_is_not_hidden():
    census = [row("bamba", "5.9.0", patched, result) for patched in (False, True) for result in ("isolated", "leaks")]
    assert "| bamba | leaks → **leaks** |" in docs_tables.families(census)


def test_a_document_that_is_not_what_stock_makes_of_it_is_explained():
    census = [row("zamba2", release, True, "differs") for release in ("5.14.1", "5.9.0")]
    page = docs_tables.families([*census, row("bamba", "5.9.0", True, "isolated")])
    assert "*packs, differs*: zamba2 in 5.9.0, 5.14.1." in page
    assert "not causal" in page
    assert "not causal" not in docs_tables.families([row("bamba", "5.9.0", True, "isolated")])


def test_lanes_that_fail_say_why():
    lane = {
        "lane": "trl-1.0.0-tf-5.2.0",
        "trl": "1.0.0",
        "transformers": "5.2.0",
        "status": "fails",
        "reasons": ["why"],
    }
    page = docs_tables.versions([lane], None)
    assert "| 1.0.0 | ✗ |" in page
    assert "✗ trl-1.0.0-tf-5.2.0: why" in page
    assert "python -m tools.drift" in page


def test_places_that_are_missing_are_named():
    found = [
        {"package": "trl", "version": version, "column": "sft: place", "status": status}
        for version, status in (("1.0.0", FOUND), ("1.1.0", MISS))
    ]
    assert "| trl | 1.0.0 to 1.1.0 | 2 | 1.1.0: sft: place |" in docs_tables.versions(None, {"findings": found})


def test_without_results_the_pages_say_so():
    assert "python -m tools.census" in docs_tables.families(None)
    assert "python -m tools.matrix" in docs_tables.versions(None, None)
