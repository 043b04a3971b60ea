"""Several processes: losses and gradients equal the documents apart on one process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.stack.test_accounting import expected_gradients
from tests.support.models import relative_error, tiny_model, token_documents

ROOT = Path(__file__).parent.parent.parent
#: Six rows of at most 70 tokens: three for each of two processes.
LENGTHS = [40, 23, 1, 64, 33, 12, 50, 9, 60, 21, 18, 44]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
ACCELERATE = ("-m", "accelerate.commands.launch", "--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu")


def launch(tmp_path, launcher=TORCHRUN, processes=2, **settings):
    """Runs `worker.py` in several processes and returns what rank 0 wrote."""
    out = tmp_path / "out.pt"
    counts = ("--num_processes" if launcher is ACCELERATE else "--nproc-per-node", str(processes))
    arguments = json.dumps(
        {"out": str(out), "lengths": LENGTHS, "max_length": 70, "shuffle_dataset": False, **settings}
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    done = subprocess.run(
        [
            sys.executable,
            *launcher,
            *counts,
            "-m" if launcher is TORCHRUN else "--module",
            "tests.stack.worker",
            arguments,
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out)


@pytest.fixture(scope="module")
def expected():
    model, documents = tiny_model("qwen3_5"), token_documents(LENGTHS)
    return expected_gradients(model, [(document, document) for document in documents])


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_ddp(tmp_path, expected, launcher):
    got = launch(tmp_path, launcher, gradient_accumulation_steps=3)
    assert got["packed"] >= 1
    assert relative_error(got["gradients"], expected) <= 1e-4


def test_ddp_with_dispatched_batches(tmp_path, expected):
    """Rank 0 reads and slices the batches: `seq_idx` has the shape of the ids so that it survives."""
    got = launch(
        tmp_path, gradient_accumulation_steps=3, pad_to_multiple_of=72, accelerator_config={"dispatch_batches": True}
    )
    assert relative_error(got["gradients"], expected) <= 1e-4


def test_fsdp2(tmp_path, expected):
    """FSDP1 is not tried: accelerate starts it on accelerators alone."""
    wrap = {"transformer_layer_cls_to_wrap": ["Qwen3_5DecoderLayer"], "fsdp_version": 2}
    got = launch(tmp_path, gradient_accumulation_steps=3, fsdp="full_shard auto_wrap", fsdp_config=wrap)
    assert relative_error(got["gradients"], expected) <= 1e-4
