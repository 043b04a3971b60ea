"""Adapters: the hooks meet the backbone under a PeftModel, and merging takes nothing away."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

import patcher
from replacements.packing.runtime import runtime_of
from tests.support.models import (
    gradients,
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    summed_loss,
    tiny_model,
    token_documents,
)
from tests.support.training import sft_trainer, training_batch

DOCUMENTS = token_documents([23, 1, 70, 12])
TARGETS = ["in_proj_qkv", "in_proj_z", "out_proj", "q_proj", "v_proj"]


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    patcher.uninstall()


def lora(**settings):
    return LoraConfig(r=4, target_modules=TARGETS, init_lora_weights=False, task_type="CAUSAL_LM", **settings)


def apart(model):
    tokens = sum(len(d) - 1 for d in DOCUMENTS)
    for document in DOCUMENTS:
        if len(document) > 1:
            (summed_loss(log_probs(model, input_ids=document[None]), [document]) / tokens).backward()
    return gradients(model)


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("wrapped_by", ["trl", "user"])
def test_a_packed_step_of_an_adapter(dora, wrapped_by):
    torch.manual_seed(0)
    model = tiny_model("qwen3_5")
    settings = {"packing": True, "bf16": False}
    if wrapped_by == "user":
        model = get_peft_model(model, lora(use_dora=dora))
    else:
        settings["peft_config"] = lora(use_dora=dora)
    trainer = sft_trainer(model, DOCUMENTS, **settings)
    model = trainer.model
    expected = apart(model.eval())
    batch = training_batch(trainer)
    trainer.compute_loss(model.train(), batch).backward()
    assert runtime_of(model).packed_forwards == 1
    assert relative_error(gradients(model), expected) <= 1e-4


def test_a_merged_model_still_packs():
    """The backbone keeps its hook when the adapter is folded into it."""
    torch.manual_seed(0)
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, peft_config=lora())
    merged = trainer.model.merge_and_unload().eval()
    with torch.no_grad():
        apart = log_probs_apart(merged, DOCUMENTS)
        assert (log_probs(merged, **packed_row(DOCUMENTS)) - apart).abs().max() <= 1e-4


def test_adapters_saved_and_loaded_are_the_same(tmp_path):
    from peft import PeftModel

    torch.manual_seed(0)
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, peft_config=lora())
    trainer.train()
    trainer.save_model(str(tmp_path))
    loaded = PeftModel.from_pretrained(tiny_model("qwen3_5"), str(tmp_path)).eval()
    with torch.no_grad():
        trained = log_probs_apart(trainer.model.eval(), DOCUMENTS)
        assert torch.allclose(log_probs_apart(loaded, DOCUMENTS), trained, atol=1e-5)
