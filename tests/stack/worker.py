"""One process of a distributed step: trains a tiny model on packed rows and writes the gradients of rank 0.

Run by `test_distributed.py` under torchrun or `accelerate launch`, with the settings as JSON in `argv[1]`.
"""

import json
import sys

import torch

import patcher  # noqa: F401  (patches TRL)
from replacements.packing.runtime import runtime_of
from tests.support.models import tiny_model, token_documents
from tests.support.training import sft_trainer


def full(tensor: torch.Tensor) -> torch.Tensor:
    """A gradient, whole, whether or not it is sharded; every process has to ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def main(out: str, lengths: list[int], **settings) -> None:
    model = tiny_model(settings.pop("family", "qwen3_5"))
    trainer = sft_trainer(model, token_documents(lengths), packing=True, max_grad_norm=0.0, **settings)
    taken = {}

    def take(*_):
        named = trainer.model_wrapped.named_parameters()
        gradients = {n: full(p.grad).clone() for n, p in named if p.grad is not None}
        taken.update({n.replace("module.", "").replace("_fsdp_wrapped_module.", ""): g for n, g in gradients.items()})

    create = trainer.create_optimizer

    def create_and_watch(*args, **kwargs):
        optimizer = create(*args, **kwargs)
        trainer.optimizer.register_step_pre_hook(take)
        return optimizer

    trainer.create_optimizer = create_and_watch
    result = trainer.train()
    if trainer.accelerator.is_main_process:
        packed = runtime_of(trainer.model).packed_forwards
        torch.save({"gradients": taken, "loss": result.training_loss, "packed": packed}, out)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
