"""The demo end to end, at its smallest size."""

import json
import os
import subprocess
import sys


def test_tiny_demo_packs_isolated_and_shows_that_stock_does_not(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "patcher", "demo", "--size", "tiny", "--output", str(tmp_path), "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["isolated"]
    assert report["patched"]["largest_delta_log_prob"] <= report["limit"]
    assert report["stock_position_ids_only"]["largest_delta_log_prob"] > 10 * report["limit"]
    stock = report["stock"]
    assert stock["error"] or stock["largest_delta_log_prob"] > report["limit"]
    assert report["largest_loss_gap"] < 1e-3  # the same documents in each step make the same loss
    for run in ("packed", "padded"):
        assert len(report[run]["curve"]["loss"]) == 4
        assert report[run]["real_tokens_per_second"] > 0
    assert {"demo.png", "report.json"} <= {path.name for path in tmp_path.iterdir()}
    assert "\x1b" not in done.stdout + done.stderr
