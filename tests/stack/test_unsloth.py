"""Real Unsloth on the CPU: what its trainers leak without patcher, they do not with it, in either order of imports."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("unsloth") is None, reason="Unsloth is not installed"),
    pytest.mark.timeout(900),
]

WORKER = Path(__file__).with_name("unsloth_worker.py")
WAYS = {
    "TRL's own class under Unsloth's wrapper": ["--way", "wrapped"],
    "with checkpointing": ["--way", "wrapped", "--checkpointing"],
    "generated, dynamic fine-tuning": ["--way", "generated", "--loss", "dft"],
}


@pytest.fixture
def step(tmp_path):
    def run(way: str, order: str) -> dict:
        variables = os.environ | {"UNSLOTH_COMPILE_LOCATION": str(tmp_path / "compiled")}
        for name in [name for name in variables if name.startswith("PATCHER_")]:
            del variables[name]
        command = [sys.executable, str(WORKER), "--order", order, *WAYS[way]]
        done = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        result = json.loads(done.stdout.splitlines()[-1])
        if not result["packed"]:
            assert result["verdict"] == (None if order == "none" else "leave"), "the guard sees the trainer"
            pytest.skip("this Unsloth pads the model here, so there is nothing to isolate")
        return result

    return run


@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("way", WAYS)
def test_packed_documents_are_isolated(step, way, order):
    got = step(way, order)
    assert max(got["loss"], got["second loss"]) <= 1e-5
    assert got["gradient"] <= 1e-4
    assert got["verdict"] == "pack"
    assert got["status"]["sft-trainer"] == "left alone"
    assert got["shares"]
    assert got["said"] == 1
    assert got["kept"]
    assert got["left"] == []


@pytest.mark.parametrize("way", ["TRL's own class under Unsloth's wrapper", "generated, dynamic fine-tuning"])
def test_without_patcher_they_leak(step, way):
    """The tests above could not fail otherwise. Should this fail, Unsloth has mended it."""
    assert step(way, "none")["gradient"] > 0.1
