"""The census sees leaks, tells padding by its reason, and fails when the patch lets a leak pass."""

import json

import pytest
import transformers
from typer.testing import CliRunner

from replacements.packing import dispatch
from replacements.packing.families import GATED_DELTA
from replacements.packing.verdict import PACK
from tools import census, census_measure, tiny_models
from tools.census_measure import Row

runner = CliRunner()


@pytest.fixture
def rows():
    return lambda family: next(census_measure.census([family]))


def results(rows, patched):
    return {row.result for row in rows if row.patched is patched}


def test_a_family_that_packs(rows):
    taken = rows("qwen3_5")
    assert len(taken) == 8
    assert results(taken, True) == {"isolated"}
    assert results(taken, False) <= {"leaks", "raises"}
    in_training = [row for row in taken if row.patched and row.mode == "train"]
    assert all(row.gradients is not None and row.gradients <= census_measure.GRADIENTS for row in in_training)


def test_a_family_that_is_padded(rows):
    taken = rows("minimax")
    assert results(taken, True) == {"padded"}
    assert all(row.detail.startswith("unsupported-mixer: ") for row in taken if row.patched)
    assert results(taken, False) == {"leaks"}


def test_a_family_of_another_release(rows, monkeypatch):
    monkeypatch.delattr(transformers, "MiniMaxForCausalLM", raising=False)
    monkeypatch.setitem(tiny_models.FAMILIES["minimax"], "model_class", "NoSuchModel")
    assert {row.result for row in rows("minimax")} == {"absent"}


def test_a_family_that_no_variant_builds(rows, monkeypatch):
    monkeypatch.setitem(tiny_models.FAMILIES["minimax"], "variants_to_try", [{"num_attention_heads": "many"}])
    taken = rows("minimax")
    assert {row.result for row in taken} == {"not built"}
    assert taken[0].detail


def test_a_difference_that_no_neighbour_makes_is_not_called_a_leak(rows, monkeypatch):
    monkeypatch.setattr(census_measure, "LOG_PROBS", 0.0)
    taken = rows("lfm2")
    assert results(taken, True) == {"differs"}
    assert results(taken, False) <= {"leaks", "raises"}


@pytest.fixture
def one_op_forgotten(monkeypatch):
    """A patch that leaves the scan at stock, and that the guard and the handshake believe."""
    points_of = dispatch.points_of
    monkeypatch.setattr(dispatch, "points_of", lambda m: [p for p in points_of(m) if GATED_DELTA not in p.ops])
    monkeypatch.setattr("replacements.packing.runtime.check_handshake", lambda *_: None)
    monkeypatch.setattr(census_measure, "judge", lambda _: PACK)


def test_a_leak_that_the_patch_lets_pass_fails_the_census(one_op_forgotten):
    done = runner.invoke(census.app, ["--families", "qwen3_5"])
    assert done.exit_code == 1
    assert "leaks with the patch: qwen3_5" in done.output


def test_json_and_files(tmp_path):
    done = runner.invoke(census.app, ["--families", "lfm2,rwkv", "--json", "--out", str(tmp_path)])
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert {row["family"] for row in said} == {"lfm2", "rwkv"}
    assert json.loads((tmp_path / "census.json").read_text()) == said
    table = (tmp_path / "census.md").read_text()
    assert "| lfm2 |" in table
    assert "padded: unsupported-mixer" in table


def test_what_was_not_measured_stays_in_the_files(tmp_path):
    first, second = sorted(("lfm2", "rwkv"), key=list(tiny_models.FAMILIES).index)

    def rows(family, release, result):
        return [Row(family, release, *cell, result, log_probs=1.0) for cell in census.CELLS]

    census.write({"5.9.0": rows(first, "5.9.0", "isolated") + rows(second, "5.9.0", "padded")}, tmp_path)
    census.write({"5.10.0": rows(second, "5.10.0", "padded")}, tmp_path)
    census.write({"5.9.0": rows(first, "5.9.0", "leaks")}, tmp_path)
    written = [Row(**row) for row in json.loads((tmp_path / "census.json").read_text())]
    assert written == [
        *rows(second, "5.10.0", "padded"), *rows(first, "5.9.0", "leaks"), *rows(second, "5.9.0", "padded")
    ]  # fmt: skip
    table = (tmp_path / "census.md").read_text()
    assert (table.count(f"| {first} |"), table.count(f"| {second} |")) == (1, 2)


def test_unknown_families_are_refused():
    assert runner.invoke(census.app, ["--families", "qwen9"]).exit_code == 2


def test_a_family_counts_by_its_worst_cell():
    cells = [
        Row("a", "5", True, mode, "seq_idx", result) for mode, result in (("eval", "isolated"), ("train", "leaks"))
    ]
    cells += [Row("b", "5", True, "eval", "seq_idx", "padded"), Row("b", "5", False, "eval", "seq_idx", "leaks")]
    assert census.summary(cells) == "1 leaks, 1 padded"
