"""The benchmarks measure what they say: every way computes the same, and the figures are of that way."""

import json
from contextlib import contextmanager

import pytest
import torch
from typer.testing import CliRunner

from replacements.kernels.segments import Segments
from tools import bench, bench_measure, bench_model, bench_probe
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
    clock = iter(float(n * n) for n in range(100))
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
    # Three readings a turn: forward takes 1, 7 and 13, backward 3, 9 and 15.
    assert (figures.forward, figures.backward) == (7.0, 9.0)
    assert inside[-4:] == ["in", "forward", "backward", "out"]


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


def test_the_cost_of_the_probe_and_its_share_of_a_run(monkeypatch):
    monkeypatch.setattr(bench_probe, "SETTINGS", bench_model.SMALL | {"hidden_size": 64, "num_hidden_layers": 4})
    ran = bench.Bench(CPU, torch.float32, 2, 16, 64, [2], [], repeats=1)
    bench.guard(ran)
    taken = ran.figures["guard"]
    assert taken["share"] == pytest.approx((taken["attach"] + taken["first"]) / (bench_probe.STEPS * taken["step"]))
    assert {"first", "again", "parameters"} <= {row[0] for row in ran.reports[0].rows}
    assert f"{taken['share']:.3%}" in ran.reports[0].markdown()
