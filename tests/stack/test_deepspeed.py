"""DeepSpeed ZeRO, where it is installed; it runs on a CPU over gloo."""

import pytest

pytest.importorskip("deepspeed", exc_type=ImportError)

from tests.stack.test_accounting import expected_gradients
from tests.stack.test_distributed import LENGTHS, TORCHRUN, launch
from tests.support.models import relative_error, tiny_model, token_documents

pytestmark = pytest.mark.slow

ROWS = [[23, 1, 40], [12, 30], [5, 5, 50], [44, 9]]
WORKER = "tests.stack.deepspeed_worker"


def config(stage, rows):
    return {
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": rows,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }


def expected(documents):
    return expected_gradients(tiny_model("qwen3_5"), [(document, document) for document in documents])


@pytest.mark.parametrize("stage", [2, 3])
def test_a_trainer(tmp_path, stage):
    settings = {"way": "trainer", "lengths": LENGTHS, "max_length": 70, "shuffle_dataset": False, "optim": "sgd"}
    settings |= {"gradient_accumulation_steps": 6, "deepspeed": config(stage, rows=6)}
    got = launch(tmp_path, TORCHRUN, 1, worker=WORKER, variables={"ACCELERATE_USE_CPU": "0"}, **settings)
    assert got["packed"] >= 1
    assert relative_error(got["gradients"], expected(token_documents(LENGTHS))) <= 1e-4


@pytest.mark.parametrize(("stage", "pack_first"), [(1, True), (2, True), (3, True), (3, False)])
def test_a_loop_in_two_processes(tmp_path, stage, pack_first):
    """Split weights cannot be probed; the first packed step is checked."""
    settings = {"way": "loop", "rows": ROWS, "config": config(stage, rows=2), "pack_first": pack_first}
    got = launch(tmp_path, worker=WORKER, **settings)
    assert got["packed"] == 2
    assert ("ZeRO-3" in got["skipped"]) == (stage == 3)
    documents = [document for seed, row in enumerate(ROWS) for document in token_documents(row, seed=seed)]
    assert relative_error(got["gradients"], expected(documents)) <= 1e-4
