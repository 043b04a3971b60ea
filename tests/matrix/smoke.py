"""One lane of the version matrix: trains packed steps through the real SFTTrainer and prints what came out, as JSON.

The reference knows nothing of packing: a copy of the model, made before the trainer touched it, takes the same documents
one at a time. With N targets in an optimizer step, the step's loss is the sum of their cross entropies over N; the losses
of the step's micro-batches must add up to it and the accumulated gradients must be its gradients.

Run as a program, by tools/matrix.py, with the lane's packages first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # a lane may run from anywhere, with any base interpreter

STEPS, ACCUMULATION = 2, 2


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


@dataclass
class Step:
    """One optimizer step as the trainer made it."""

    weights: dict
    rows: list[list[int]] = field(default_factory=list)
    loss: float = 0.0
    gradients: dict = field(default_factory=dict)


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
        loss = training_step(model, inputs, *rest, **more)
        steps[-1].loss += float(loss.detach())
        micro += 1
        if micro % ACCUMULATION == 0:
            steps[-1].gradients = {n: p.grad.detach().clone() for n, p in parameters.items() if p.grad is not None}
        return loss

    trainer.training_step = recorded


def apart(model, step: Step) -> tuple[float, dict]:
    """Returns the loss and the gradients of a step's documents, each run alone through an untouched model."""
    import torch
    from torch.nn.functional import cross_entropy

    from tests.matrix import tiny

    found = [document for row in step.rows for document in tiny.split(row)]
    targets = sum(len(document) - 1 for document in found)
    model.load_state_dict(step.weights, strict=False)
    model.train()
    model.zero_grad()
    total = 0.0
    for document in found:
        ids = torch.tensor([document])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
        loss = cross_entropy(logits, ids[0, 1:], reduction="sum") / targets
        loss.backward()
        total += float(loss.detach())
    return total, {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}


def compare(model, steps: list[Step], outcome: Outcome) -> None:
    """Fills in the differences between the recorded steps and the documents apart."""
    import torch

    from tests.matrix import tiny

    outcome.loss = outcome.gradient = 0.0
    for step in steps:
        loss, gradients = apart(model, step)
        outcome.loss = max(outcome.loss, abs(step.loss - loss))
        whole = torch.stack([grad.norm() for grad in gradients.values()]).norm()
        for name, grad in gradients.items():
            got = step.gradients.get(name, torch.zeros_like(grad))
            # A parameter whose gradient is rounding noise beside the others' is measured against them.
            scale = max(float(grad.norm()), 1e-3 * float(whole))
            outcome.gradient = max(outcome.gradient, float((got - grad).norm()) / scale)
    outcome.packed = any(len(tiny.split(row)) > 1 for step in steps for row in step.rows)
    outcome.steps = len(steps)


def train(family: str, folder: str) -> Outcome:
    """Trains the family's tiny model on packed rows with the trainer that `trl` has now, and compares."""
    import trl
    from datasets import Dataset

    from tests.matrix import tiny

    outcome, steps = Outcome(), []
    model = tiny.model(family)
    reference = copy.deepcopy(model)
    arguments = trl.SFTConfig(
        output_dir=folder,
        packing=True,
        max_length=tiny.ROW,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=ACCUMULATION,
        max_steps=STEPS,
        optim="sgd",
        learning_rate=1e-2,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    data = Dataset.from_dict({"input_ids": tiny.documents(STEPS * ACCUMULATION)})
    try:
        trainer = trl.SFTTrainer(model=model, args=arguments, train_dataset=data, processing_class=tiny.tokenizer())
        watch(trainer, steps, outcome)
        trainer.train()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.error = f"{type(error).__name__}: {error}".strip().splitlines()[0][:400]
        outcome.where = "/".join(Path(last.filename).parts[-3:]) + f":{last.name}"
        return outcome
    compare(reference, steps, outcome)
    return outcome


def run(families: list[str], order: str) -> dict:
    """Trains each family as stock TRL does and then with the patch (which is loaded first or last), in one process."""
    if order == "first":
        import patcher
    import torch
    import trl  # noqa: F401

    from tests.matrix import tiny

    torch.set_num_threads(1)  # tiny tensors: a second thread only waits
    result: dict = {"families": {}, "versions": {}}
    for package in ("torch", "trl", "transformers", "datasets", "huggingface_hub", "tokenizers", "accelerate"):
        result["versions"][package] = version(package)
    there = [family for family in families if tiny.exists(family)]
    if order == "first":
        patcher.uninstall()
    with tempfile.TemporaryDirectory() as folder:
        stock = {family: train(family, folder) for family in there}
        patched: dict[str, Outcome] = {}
        if order != "none":
            import patcher

            patcher.install()
            patched = {family: train(family, folder) for family in there}
    for family in there:
        both = {"stock": asdict(stock[family])}
        if family in patched:
            both["patched"] = asdict(patched[family])
        result["families"][family] = both
    return result


def main() -> None:
    """Reads the command line, keeps stdout for the one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="+")
    parser.add_argument("--order", choices=("first", "last", "none"), default="last", help="when patcher is imported")
    arguments = parser.parse_args()
    with contextlib.redirect_stdout(io.TextIOWrapper(sys.stderr.buffer, write_through=True)):
        result = run(arguments.families, arguments.order)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
