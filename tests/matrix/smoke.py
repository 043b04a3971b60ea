"""One lane of the version matrix: trains packed steps through the real SFTTrainer and prints what came out, as JSON.

The reference knows nothing of packing: a copy of the model, made before the trainer touched it, takes the same
documents one at a time. With N targets in an optimizer step, its loss is the sum of their cross entropies over N; the
losses of the step's micro-batches must add up to it and the gradients they leave must be its gradients.

Run as a program, by tools/matrix.py, with the lane's packages first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import logging
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # a lane may run from anywhere, with any base interpreter

# One micro-batch a step: some releases (transformers 5.2) scale accumulated gradients wrongly, packed or not.
STEPS, ACCUMULATION = 2, 1


@dataclass(frozen=True)
class Scenario:
    """One way to train: what is passed to SFTConfig beside the usual, and what the result is compared with."""

    arguments: dict
    whole_rows: bool = False  # TRL gives no lengths and means each row as one document
    evaluates: bool = False


SCENARIOS = {
    "packing": Scenario({}),
    "padding_free": Scenario(
        {"packing": False, "padding_free": True, "max_length": None, "per_device_train_batch_size": 3}
    ),
    "pad_to_multiple_of": Scenario({"pad_to_multiple_of": 64}),
    "wrapped": Scenario({"packing_strategy": "wrapped"}, whole_rows=True),
    "bfd-requeue": Scenario({"packing_strategy": "bfd-requeue"}),
    "eval_packing alone": Scenario({"packing": False, "eval_packing": True}, evaluates=True),
    "eval_packing off": Scenario({"packing": True, "eval_packing": False}, evaluates=True),
}


@dataclass
class Outcome:
    """What one training run gave. Differences are the largest over the optimizer steps."""

    error: str | None = None
    where: str | None = None  # the innermost frame of the error
    packed: bool = False
    batch: list[str] = field(default_factory=list)  # the keys of the collated batch
    steps: int = 0
    loss: float | None = None  # |packed - apart|
    gradient: float | None = None  # ||packed - apart|| / ||apart||, the worst parameter
    evaluation: float | None = None  # |packed - apart| of the evaluation loss, where there is one
    notes: list[str] = field(default_factory=list)  # what the patch logged


@dataclass
class Step:
    """One optimizer step as the trainer made it."""

    weights: dict
    rows: list[list[int]] = field(default_factory=list)
    loss: float = 0.0
    gradients: dict = field(default_factory=dict)
    items: int | None = None  # targets, as the trainer counts them


def watch(trainer, steps: list[Step], outcome: Outcome) -> None:
    """Records each optimizer step by standing around the trainer's own `training_step`."""
    training_step, micro = trainer.training_step, 0

    def recorded(model, inputs, *rest, **more):
        nonlocal micro
        parameters = dict(trainer.accelerator.unwrap_model(model).named_parameters())
        if micro % ACCUMULATION == 0:
            steps.append(Step({name: weight.detach().clone() for name, weight in parameters.items()}))
        outcome.batch = sorted(inputs)
        steps[-1].rows += inputs["input_ids"].tolist()
        items = rest[0] if rest else more.get("num_items_in_batch")
        steps[-1].items = None if items is None else int(items)
        loss = training_step(model, inputs, *rest, **more)
        steps[-1].loss += float(loss.detach())
        micro += 1
        if micro % ACCUMULATION == 0:
            steps[-1].gradients = {n: p.grad.detach().clone() for n, p in parameters.items() if p.grad is not None}
        return loss

    trainer.training_step = recorded


def apart(model, documents: list[list[int]], items: int | None = None) -> float:
    """Returns the mean cross entropy of documents, each run alone; leaves its gradients on the model.

    Args:
        model: an untouched model.
        documents: token ids.
        items: what to divide by in place of the number of targets.
    """
    import torch
    from torch.nn.functional import cross_entropy

    targets, total = items or sum(len(document) - 1 for document in documents), 0.0
    model.train()
    model.zero_grad()
    for document in documents:
        ids = torch.tensor([document])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        loss = cross_entropy(logits, ids[0, 1:], reduction="sum") / targets
        loss.backward()
        total += float(loss.detach())
    return total


def compare(model, steps: list[Step], scenario: Scenario, outcome: Outcome) -> None:
    """Fills in the differences between the recorded steps and the documents apart."""
    import torch

    from tests.matrix import tiny

    split = tiny.whole if scenario.whole_rows else tiny.split
    outcome.loss = outcome.gradient = 0.0
    for step in steps:
        model.load_state_dict(step.weights, strict=False)
        documents = [document for row in step.rows for document in split(row)]
        # Some transformers count a row's first label, which no token predicts. In rows of one document that is theirs
        # to decide; in rows of several, first labels are masked and every way of counting must agree.
        loss = apart(model, documents, step.items if len(documents) == len(step.rows) else None)
        outcome.loss = max(outcome.loss, abs(step.loss - loss))
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        whole = torch.stack([grad.norm() for grad in gradients.values()]).norm()
        for name, grad in gradients.items():
            got = step.gradients.get(name, torch.zeros_like(grad))
            # A parameter whose gradient is rounding noise beside the others' is measured against them.
            scale = max(float(grad.norm()), 1e-3 * float(whole))
            outcome.gradient = max(outcome.gradient, float((got - grad).norm()) / scale)
    outcome.packed = any(len(tiny.split(row)) > 1 for step in steps for row in step.rows)
    outcome.steps = len(steps)


def arguments(scenario: Scenario, folder: str):
    """Builds the SFTConfig of a scenario."""
    import trl

    from tests.matrix import tiny

    usual = {
        "packing": True,
        "max_length": tiny.ROW,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 3,
        "gradient_accumulation_steps": ACCUMULATION,
        "max_steps": STEPS,
        "optim": "sgd",
        "learning_rate": 1e-2,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }
    # Some releases put a loss of the experts' load back that the model has off: it is not a sum over documents.
    off = {name: 0.0 for name in ("router_aux_loss_coef",) if name in trl.SFTConfig.__dataclass_fields__}
    return trl.SFTConfig(output_dir=folder, **usual | off | scenario.arguments)


def train(family: str, scenario: Scenario, folder: str) -> Outcome:
    """Trains the family's tiny model as the scenario says, with the trainer that `trl` has now, and compares."""
    import trl
    from datasets import Dataset

    from tests.matrix import tiny

    outcome, steps = Outcome(), []
    model = tiny.model(family)
    reference = copy.deepcopy(model)
    documents = tiny.documents(STEPS * ACCUMULATION)
    data = Dataset.from_dict({"input_ids": documents})
    more = {"eval_dataset": data} if scenario.evaluates else {}
    with logged(outcome.notes):
        try:
            trainer = trl.SFTTrainer(
                model=model,
                args=arguments(scenario, folder),
                train_dataset=data,
                processing_class=tiny.tokenizer(),
                **more,
            )
            watch(trainer, steps, outcome)
            trainer.train()
            evaluated = trainer.evaluate()["eval_loss"] if scenario.evaluates else None
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            outcome.error = f"{type(error).__name__}: {error}".strip().splitlines()[0][:400]
            outcome.where = "/".join(Path(last.filename).parts[-3:]) + f":{last.name}"
            return outcome
    compare(reference, steps, scenario, outcome)
    if evaluated is not None:
        reference.load_state_dict(model.state_dict())
        # Each batch holds as many targets, packed or not, so TRL's mean over batches is the mean over targets.
        outcome.evaluation = abs(evaluated - apart(reference, documents))
    return outcome


@contextlib.contextmanager
def logged(notes: list[str]):
    """Collects what the patch logs as a warning."""

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            notes.append(record.getMessage()[:400])

    collector = Collector(logging.WARNING)
    logging.getLogger("patcher").addHandler(collector)
    try:
        yield
    finally:
        logging.getLogger("patcher").removeHandler(collector)


def run(families: list[str], extras: list[str], order: str) -> dict:
    """Trains as stock TRL does and then with the patch (which is loaded first or last), in one process.

    Args:
        families: families that are trained packed, where they exist.
        extras: scenarios that the first of them is trained in too.
        order: when patcher is imported: `first`, `last` or, for stock alone, `none`.
    """
    if order == "first":
        import patcher
    import torch
    import trl  # noqa: F401

    from tests.matrix import tiny

    torch.set_num_threads(1)  # tiny tensors: a second thread only waits
    there = [family for family in families if tiny.exists(family)]
    wanted = [(family, "packing") for family in there] + [(there[0], extra) for extra in extras if there]
    if order == "first":
        patcher.uninstall()
    with tempfile.TemporaryDirectory() as folder:
        runs = {key: {"stock": asdict(train(key[0], SCENARIOS[key[1]], folder))} for key in wanted}
        if order != "none":
            import patcher

            patcher.install()
            for key in wanted:
                runs[key]["patched"] = asdict(train(key[0], SCENARIOS[key[1]], folder))
    packages = ("torch", "trl", "transformers", "datasets", "huggingface_hub", "tokenizers", "accelerate")
    return {
        "versions": {package: version(package) for package in packages},
        "runs": [{"family": family, "scenario": scenario, **runs[family, scenario]} for family, scenario in wanted],
    }


def main() -> None:
    """Reads the command line, keeps stdout for the one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="+")
    parser.add_argument("--extra", action="append", default=[], choices=SCENARIOS, help="another way to train")
    parser.add_argument("--order", choices=("first", "last", "none"), default="last", help="when patcher is imported")
    given = parser.parse_args()
    with contextlib.redirect_stdout(io.TextIOWrapper(sys.stderr.buffer, write_through=True)):
        result = run(given.families, given.extra, given.order)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
