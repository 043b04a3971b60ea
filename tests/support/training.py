"""The real SFTTrainer on token documents."""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer


def tiny_tokenizer(vocab: int = 128) -> PreTrainedTokenizerFast:
    """A tokenizer of `vocab` words; the tests give ids, so it tokenizes nothing."""
    words = {f"w{i}": i for i in range(vocab)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w1")), pad_token="w0", eos_token="w2"
    )


def sft_trainer(
    model, documents: list[torch.Tensor], labels: list[torch.Tensor] | None = None, **settings
) -> SFTTrainer:
    """A trainer on CPU over documents that are tokenized already; `settings` are SFTConfig's or SFTTrainer's."""
    arguments = {
        "output_dir": tempfile.mkdtemp(),
        "report_to": [],
        "use_cpu": True,
        "max_length": 512,
        "per_device_train_batch_size": 1,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "bf16": False,
        "max_steps": 1,
        "save_strategy": "no",
        **settings,
    }
    extra = {
        name: arguments.pop(name) for name in ("data_collator", "eval_dataset", "peft_config") if name in arguments
    }
    columns = {"input_ids": [document.tolist() for document in documents]}
    if labels is not None:
        columns["labels"] = [label.tolist() for label in labels]
    return SFTTrainer(
        model,
        args=SFTConfig(**arguments),
        train_dataset=Dataset.from_dict(columns),
        processing_class=tiny_tokenizer(),
        **extra,
    )


def training_batch(trainer: SFTTrainer) -> dict[str, torch.Tensor]:
    """The first batch the trainer would train on."""
    return next(iter(trainer.get_train_dataloader()))
