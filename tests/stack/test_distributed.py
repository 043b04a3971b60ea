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


def launch(tmp_path, launcher=TORCHRUN, processes=2, worker="tests.stack.worker", variables=None, **settings):
    """Runs a worker in several processes and returns what rank 0 wrote."""
    out = tmp_path / "out.pt"
    counts = ("--num_processes" if launcher is ACCELERATE else "--nproc-per-node", str(processes))
    module = ("-m" if launcher is TORCHRUN else "--module", worker, json.dumps({"out": str(out), **settings}))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    fixed = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, *counts, *module],
        cwd=ROOT,
        env=os.environ | fixed | (variables or {}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return torch.load(out)


def train(tmp_path, launcher=TORCHRUN, **settings):
    """A step of TRL's trainer in two processes."""
    rows = {"lengths": LENGTHS, "max_length": 70, "shuffle_dataset": False, "gradient_accumulation_steps": 3}
    return launch(tmp_path, launcher, **{**rows, **settings})


@pytest.fixture(scope="module")
def expected():
    model, documents = tiny_model("qwen3_5"), token_documents(LENGTHS)
    return expected_gradients(model, [(document, document) for document in documents])


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_ddp(tmp_path, expected, launcher):
    got = train(tmp_path, launcher)
    assert got["packed"] >= 1
    assert relative_error(got["gradients"], expected) <= 1e-4


def test_ddp_with_dispatched_batches(tmp_path, expected):
    """Rank 0 reads and slices the batches: `seq_idx` has the shape of the ids so that it survives."""
    got = train(tmp_path, pad_to_multiple_of=72, accelerator_config={"dispatch_batches": True})
    assert relative_error(got["gradients"], expected) <= 1e-4


def test_a_last_batch_that_is_short_of_rows(tmp_path):
    """Seven rows of two documents in steps of four: accelerate fills the last step with the first row."""
    lengths = [60, 59, 58, 57, 56, 55, 54, 10, 11, 12, 13, 14, 15, 16]
    settings = {"lengths": lengths, "gradient_accumulation_steps": 2, "train_sampling_strategy": "sequential"}
    got = train(tmp_path, learning_rate=0.0, max_steps=-1, num_train_epochs=1, **settings)
    documents = token_documents(lengths)
    last = [documents[n + half] for n in (4, 5, 6, 0) for half in (0, 7)]
    expected = expected_gradients(tiny_model("qwen3_5"), [(document, document) for document in last])
    assert relative_error(got["gradients"], expected) <= 1e-4


def test_fsdp2(tmp_path, expected):
    """FSDP1 is not tried: accelerate starts it on accelerators alone."""
    wrap = {"transformer_layer_cls_to_wrap": ["Qwen3_5DecoderLayer"], "fsdp_version": 2}
    got = train(tmp_path, fsdp="full_shard auto_wrap", fsdp_config=wrap)
    assert relative_error(got["gradients"], expected) <= 1e-4
