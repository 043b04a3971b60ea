"""One packed step of a tiny convolutional hybrid in Unsloth's trainer, compared with its documents alone, as JSON.

Run in a process of its own: importing Unsloth changes transformers and TRL for good.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import tempfile
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

LENGTHS = (23, 9, 70, 12)


def unsloth_trainer(way: str):
    """Imports Unsloth as on a machine with an accelerator: its wrappers on TRL's class, or a generated class too."""
    import unsloth  # noqa: F401
    from unsloth.models.rl import patch_trl_rl_trainers
    from unsloth.trainer import _patch_trl_trainer

    if way == "generated":
        patch_trl_rl_trainers()
    _patch_trl_trainer()
    import trl

    return trl.SFTTrainer, trl.SFTConfig


def untouched(cls: type) -> list:
    """What Unsloth made of a class: its wrappers, from the outermost, without what lies under them."""
    found, function = [], cls.__init__
    while function.__module__.partition(".")[0] == "unsloth":
        found.append(function)
        function = function.__wrapped__
    return [cls, *found]


def token_loss(model, document, loss_type: str):
    """Sum over the targets of one document, run alone: cross entropy, or that of dynamic fine-tuning (2508.05629)."""
    logps = model(input_ids=document[None]).logits[0].float().log_softmax(-1)[:-1].gather(1, document[1:, None])
    return -(logps.exp().detach() * logps if loss_type == "dft" else logps).sum()


def compare(trainer, model, documents, loss_type: str) -> dict:
    """Errors of two packed forwards that are both pending when backward runs, relative to the documents alone."""
    from tests.support.models import gradients, relative_error
    from tests.support.training import training_batch

    targets = sum(len(document) - 1 for document in documents)
    want = 0.0
    model.train()
    for document in documents:
        loss = token_loss(model, document, loss_type) / targets
        loss.backward()
        want += float(loss.detach())
    batch = training_batch(trainer)
    trainer.model.train()
    if trainer.args.gradient_checkpointing:
        trainer.model.gradient_checkpointing_enable()  # as `train()` does before the first step
    loss = trainer.compute_loss(trainer.model, dict(batch))
    turned = _reversed_documents(batch)
    other = trainer.compute_loss(trainer.model, turned)
    ((loss + other) / 2).backward()
    got = {name.removeprefix("base_model.model."): value for name, value in gradients(trainer.model).items()}
    return {
        "loss": abs(float(loss.detach()) - want) / want,
        "second loss": abs(float(other.detach()) - want) / want,
        "gradient": relative_error(got, gradients(model)),
        "batch": sorted(batch),
        "documents": int((batch["position_ids"] == 0).sum()) if "position_ids" in batch else len(batch["input_ids"]),
    }


def _reversed_documents(batch: dict) -> dict:
    """The same documents the other way round, so that the boundaries of the two forwards differ."""
    import torch

    order = torch.arange(batch["input_ids"].shape[1]).tensor_split((batch["position_ids"][0] == 0).nonzero()[1:, 0])
    index = torch.cat(order[::-1])
    turned = {name: value[:, index] for name, value in batch.items() if value.ndim == 2}
    turned["position_ids"] = batch["position_ids"][:, index]
    if "seq_idx" in turned:
        turned["seq_idx"] = ((turned["position_ids"] == 0).cumsum(1) - 1).int()
    if "packed_seq_lengths" in batch:
        turned["packed_seq_lengths"] = batch["packed_seq_lengths"].flip(0)
    return turned


def run(order: str, way: str, loss_type: str, checkpointing: bool) -> dict:
    """Builds the trainer in one order of imports and compares."""
    logged = io.StringIO()
    logging.getLogger("patcher").addHandler(logging.StreamHandler(logged))
    logging.getLogger("patcher").setLevel(logging.INFO)
    if order == "first":
        import patcher
    trainer_class, config_class = unsloth_trainer(way)
    made = untouched(trainer_class)
    if order == "last":
        import patcher
    from tests.support import training
    from tests.support.models import tiny_model, token_documents

    training.SFTTrainer, training.SFTConfig = trainer_class, config_class
    documents = token_documents(list(LENGTHS))
    settings = {"packing": True, "loss_type": loss_type, "gradient_checkpointing": checkpointing}
    trainer = training.sft_trainer(tiny_model("lfm2"), documents, output_dir=tempfile.mkdtemp(), **settings)
    result = {"packed": bool(trainer.args.packing), "class": trainer_class.__name__}
    result["verdict"] = getattr(vars(trainer).get("_patcher_verdict"), "action", None)
    if result["packed"]:
        result |= compare(trainer, tiny_model("lfm2"), documents, loss_type)
    if order != "none":
        result["status"] = {row.name: row.state for row in patcher.status().rewrites}
        result["shares"] = [row.name for row in patcher.status().rewrites if "Unsloth owns" in row.reason]
        result["said"] = logged.getvalue().count("Unsloth owns")
        patcher.uninstall()
        result["kept"] = all(a is b for a, b in zip(made, untouched(trainer_class), strict=True))
        result["left"] = [row.name for row in patcher.status().rewrites if row.state == "stuck"]
    return result


def main() -> None:
    """Prints the result on the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--order", choices=["first", "last", "none"], required=True)
    parser.add_argument("--way", choices=["wrapped", "generated"], required=True)
    parser.add_argument("--loss", default="nll")
    parser.add_argument("--checkpointing", action="store_true")
    options = parser.parse_args()
    os.environ |= {"UNSLOTH_ALLOW_CPU": "1", "TRITON_INTERPRET": "1", "HF_HUB_OFFLINE": "1", "CI": "1"}
    with contextlib.redirect_stdout(sys.stderr):
        result = run(options.order, options.way, options.loss, options.checkpointing)
    print(json.dumps(result, default=types.SimpleNamespace))


if __name__ == "__main__":
    main()
