"""One process of a step under DeepSpeed ZeRO: packed rows on a tiny model, and the gradients of rank 0.

Run by `test_deepspeed.py` under torchrun, with the settings as JSON in `argv[1]`.
"""

import json
import sys

import torch
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.utils import safe_get_full_grad

import patcher
from replacements.packing.probe import why_not
from replacements.packing.runtime import runtime_of
from tests.support.models import log_probs, packed_row, summed_loss, tiny_model, token_documents
from tests.support.training import sft_trainer


def gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Whole gradients after a backward and before its step; every process has to ask."""
    named = {name: safe_get_full_grad(parameter) for name, parameter in module.named_parameters()}
    return {name: gradient.clone() for name, gradient in named.items() if gradient is not None}


def in_trainer(lengths: list[int], **settings) -> dict:
    """TRL's trainer. On a CPU accelerate knows DeepSpeed in one process only."""
    trainer = sft_trainer(
        tiny_model("qwen3_5"), token_documents(lengths), packing=True, use_cpu=False, max_grad_norm=0.0, **settings
    )
    taken, step = {}, DeepSpeedEngine.step

    def watched(engine, *args, **kwargs):
        taken.update(gradients(engine.module))
        return step(engine, *args, **kwargs)

    DeepSpeedEngine.step = watched
    trainer.train()
    return {"gradients": taken, "packed": runtime_of(trainer.model).packed_forwards, "skipped": ""}


def in_a_loop(rows: list[list[int]], config: dict, pack_first: bool) -> dict:
    """A loop of one's own over rows dealt to the processes; packed before the weights are split, or after."""
    import deepspeed

    deepspeed.init_distributed("gloo")
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    documents = [token_documents(lengths, seed=number) for number, lengths in enumerate(rows)]
    tokens = sum(length - 1 for lengths in rows for length in lengths)
    model = tiny_model("qwen3_5").train()
    if pack_first:
        patcher.pack(model)
    optimizer = torch.optim.SGD(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    skipped = why_not(model)
    if not pack_first:
        patcher.pack(model)
    mine = documents[rank::processes]
    for row in mine:  # the engine takes the mean over rows and processes
        loss = summed_loss(log_probs(engine, **packed_row(row)), row) / tokens * processes * len(mine)
        engine.backward(loss)
        taken = gradients(model) if row is mine[-1] else {}  # not whole before
        engine.step()
    return {"gradients": taken, "packed": runtime_of(model).packed_forwards, "skipped": skipped}


def main(out: str, way: str, **settings) -> None:
    result = {"trainer": in_trainer, "loop": in_a_loop}[way](**settings)
    if torch.distributed.get_rank() == 0:
        torch.save(result, out)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
