"""The benchmarks measure what they say: every way computes the same, and the figures are of that way."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from replacements.kernels.segments import Segments
from tools import bench, bench_join, bench_measure, bench_model, bench_probe
from tools.bench_cases import APART, CASES, OURS, STOCK, documents

CPU = torch.device("cpu")
LENGTHS = [9, 1, 30, 24]


@pytest.mark.parametrize("op", CASES)
def test_ours_is_what_one_scan_per_document_gives_and_stock_is_not(op):
    case, segments = CASES[op], Segments(LENGTHS)
    given = case.arguments(2, 16, segments.total, CPU, torch.float32)
    ways = case.ways(given, segments)
    if APART not in ways:
        pytest.skip("this transformers has no torch function of its own")
    ours, apart, stock = (ways[name](given, segments) for name in (OURS, APART, STOCK))
    assert (ours - apart).abs().max() <= 1e-4
    assert (ours - stock).abs().max() > 1e-2


@pytest.mark.parametrize("count", [1, 15, 400])
def test_documents_fill_the_row(count):
    lengths = documents(4096, count)
    assert len(lengths) == count
    assert sum(lengths) == 4096
    assert min(lengths) >= 1


def test_turns_are_taken_in_their_context_and_medians_kept(monkeypatch):
    clock = iter(n * n / 1e3 for n in range(100))
    monkeypatch.setattr(bench_measure.time, "perf_counter", lambda: next(clock))
    inside = []

    @contextmanager
    def around():
        inside.append("in")
        yield
        inside.append("out")

    def step():
        inside.append("forward")
        return lambda: inside.append("backward")

    figures = bench_measure.measure({"one": step}, CPU, 3, {"one": around})["one"]
    # Three readings a turn, of which the first is to warm up: forward takes 7, 13 and 19 ms, backward 9, 15 and 21.
    assert (figures.forward, figures.backward) == pytest.approx((0.013, 0.015))
    assert figures.turns == 3
    assert inside[-4:] == ["in", "forward", "backward", "out"]


def test_what_is_slow_takes_one_turn_on_a_cpu(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(bench_measure.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setitem(bench_measure._ONCE, "cpu", 1.5)
    taken = []

    def step():
        taken.append("forward")
        return lambda: None

    figures = bench_measure.measure({"one": step}, CPU, 5)["one"]
    assert (figures.forward, figures.backward, figures.turns) == (1.0, 1.0, 1)
    assert len(taken) == 2  # the second for the memory


def test_the_fallback_is_taken_once_where_it_is_slow_on_the_whole_row(monkeypatch):
    ran = bench.Bench(CPU, torch.float32, 2, 8, 64, [2, 4], ["causal_conv1d"], repeats=2)
    slow_from = 64
    operations = bench.Bench.operations

    def slow(self, op, tokens, count, **kwargs):
        found = operations(self, op, tokens, count, **kwargs)
        return {n: replace(f, once=n == STOCK and tokens >= slow_from) for n, f in found.items()}

    monkeypatch.setattr(bench.Bench, "operations", slow)
    bench.ops(ran)
    first, second = (ran.figures["ops"][f"causal_conv1d, {count} documents"] for count in (2, 4))
    assert first[STOCK] == second[STOCK]
    assert first[OURS] != second[OURS]
    assert APART in ran.figures["apart"]["causal_conv1d, 2 documents"]


def test_a_fallback_that_is_slow_on_a_short_row_is_not_taken_on_the_whole(monkeypatch):
    monkeypatch.setitem(bench_measure._ONCE, "cpu", 0.0)
    ran = bench.Bench(CPU, torch.float32, 2, 8, 64, [2], ["causal_conv1d"], repeats=2)
    bench.ops(ran)
    group = ran.figures["ops"]["causal_conv1d, 2 documents"]
    assert set(group) == {f"{STOCK}, 8 tokens", OURS}
    ours = group[OURS]["forward"] / group[f"{STOCK}, 8 tokens"]["forward"]
    assert f"{ours:.3f}" in ran.reports[0].markdown()


def test_kernels_by_hand_are_measured_twice_and_ours_is_warm(monkeypatch):
    made = bench_model.build(bench_model.SMALL | {"num_hidden_layers": 2}, CPU, torch.float32)
    calls = []

    def way(self, *backends, accelerated=None):
        calls.append(accelerated)
        return self.ours_of_torch()

    monkeypatch.setattr(bench_model, "working", lambda *_: ("a convolution", "a scan"))
    monkeypatch.setattr(bench_model.Ways, "ours_of_torch", bench_model.Ways.stock, raising=False)
    monkeypatch.setattr(bench_model.Ways, "native", way)
    monkeypatch.setattr(bench_model.Ways, "ours", way)
    figures = bench_model.against_native(made, [5, 3], CPU, 2)
    assert list(figures) == [bench_model.NATIVE, bench_model.ACCELERATED, bench_model.AGAIN]
    assert calls == [None, True, None] * 3
    monkeypatch.setattr(bench_model, "working", lambda *_: None)
    assert bench_model.against_native(made, [5, 3], CPU, 2) is None


def test_peak_memory_counts_what_is_held_at_once():
    def step():
        first = torch.ones(2**20)
        second = torch.ones(2**20)
        del first
        third = torch.ones(2**20)
        return lambda: len((second, third))

    peak = bench_measure.measure({"one": step}, CPU, 1)["one"].memory
    assert 2 * 2**22 <= peak < 2.1 * 2**22


def test_padded_batches_hold_every_document_in_as_many_slots():
    row = bench_model.packed(LENGTHS, 50, CPU)
    batches = bench_model.padded(row, LENGTHS)
    assert all(batch["input_ids"].numel() <= sum(LENGTHS) for batch in batches)
    real = [ids[mask.bool()] for b in batches for ids, mask in zip(b["input_ids"], b["attention_mask"], strict=True)]
    assert [len(document) for document in real] == LENGTHS
    assert torch.equal(torch.cat(real), row["input_ids"][0])


def test_the_program_writes_tables_and_numbers(tmp_path):
    arguments = ["--heads", "2", "--width", "8", "--tokens", "64", "--documents", "4", "--repeats", "1"]
    arguments += ["--ops", "causal_conv1d", "--sections", "ops", "--json", "--out", str(tmp_path)]
    done = CliRunner().invoke(bench.app, arguments)
    assert done.exit_code == 0, done.output
    figures = json.loads((tmp_path / "bench.json").read_text())
    assert figures["ops"]["causal_conv1d, 4 documents"][OURS]["forward"] > 0
    assert "| causal_conv1d, 4 documents | ours |" in (tmp_path / "bench.md").read_text()


def test_runs_are_joined_on_one_page(tmp_path):
    run = {"machine": {"device": "a card"}, "figure": 1}
    table = {"title": "Times", "columns": ["way", "ms"], "rows": [["ours", "1.0"]], "note": "A note."}
    (tmp_path / "one.json").write_text(json.dumps(run | {"tables": [table]}))
    stem = tmp_path / "page"
    done = CliRunner().invoke(bench_join.app, [str(stem), f"With kernels={tmp_path / 'one.json'}"])
    assert done.exit_code == 0, done.output
    page = stem.with_suffix(".md").read_text()
    assert "# Benchmarks, a card\n" in page
    assert "## With kernels\n" in page
    assert "| ours | 1.0 |\n\nA note.\n" in page
    assert json.loads(stem.with_suffix(".json").read_text())["With kernels"]["figure"] == 1


def test_the_cost_of_the_probe_and_its_share_of_a_run(monkeypatch):
    monkeypatch.setattr(bench_probe, "SETTINGS", bench_model.SMALL | {"hidden_size": 64, "num_hidden_layers": 4})
    ran = bench.Bench(CPU, torch.float32, 2, 16, 64, [2], [], repeats=1)
    bench.guard(ran)
    taken = ran.figures["guard"]
    assert taken["share"] == pytest.approx((taken["attach"] + taken["first"]) / (bench_probe.STEPS * taken["step"]))
    assert {"first", "again", "parameters"} <= {row[0] for row in ran.reports[0].rows}
    assert f"{taken['share']:.3%}" in ran.reports[0].markdown()
