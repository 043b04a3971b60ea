"""Adapters on weights of 4 and 8 bits, where bitsandbytes is installed; its newer releases train on a CPU."""

import pytest
import torch

pytest.importorskip("bitsandbytes", exc_type=ImportError)

from transformers import BitsAndBytesConfig

import patcher
from replacements.packing.runtime import runtime_of
from tests.stack.test_peft import DOCUMENTS, apart, lora
from tests.support.models import gradients, relative_error, tiny_model
from tests.support.training import sft_trainer, training_batch

WAYS = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4, double": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}


def quantized(folder, **way):
    """The tiny hybrid, loaded as users load it."""
    tiny_model("qwen3_5").save_pretrained(folder)
    config = BitsAndBytesConfig(**way, bnb_4bit_compute_dtype=torch.float32)
    cls = type(tiny_model("qwen3_5"))
    return cls.from_pretrained(folder, quantization_config=config, device_map="cpu", dtype=torch.float32)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_packed_step_of_an_adapter(way, tmp_path):
    patcher.install()
    torch.manual_seed(0)
    trainer = sft_trainer(quantized(tmp_path, **way), DOCUMENTS, packing=True, peft_config=lora())
    assert {p.dtype for p in trainer.model.parameters()} & {torch.uint8, torch.int8}
    for parameter in trainer.model.parameters():
        if parameter.requires_grad:  # TRL has adapters in bfloat16 here, whose gradients say little
            parameter.data = parameter.data.float()
    expected = apart(trainer.model.train())
    trainer.compute_loss(trainer.model, training_batch(trainer)).backward()
    assert runtime_of(trainer.model).packed_forwards == 1
    assert relative_error(gradients(trainer.model), expected) <= 1e-4
    patcher.uninstall()
