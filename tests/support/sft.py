"""Trainers over any dataset, and what the documents apart say of their batches."""

from __future__ import annotations

import tempfile

import torch
from datasets import Dataset, IterableDataset
from trl import SFTConfig, SFTTrainer

from tests.support.models import families, gradients, log_probs, summed_loss
from tests.support.training import tiny_tokenizer

#: A hybrid of the gated delta rule that this transformers has.
HYBRID = next(family for family in ("qwen3_5", "qwen3_next") if family in families())
SKIP_PREPARATION = {"skip_prepare_dataset": True}


def config(cls: type = SFTConfig, **changes) -> SFTConfig:
    """Settings for a CPU, of any class; a field that this TRL lacks is left out."""
    fields = cls.__dataclass_fields__
    wanted = {
        "output_dir": tempfile.mkdtemp(),
        "report_to": [],
        "use_cpu": True,
        "max_length": 512,
        "per_device_train_batch_size": 1,
        "per_device_eval_batch_size": 1,
        "gradient_checkpointing": False,
        "logging_steps": 1,
        "bf16": False,
        "max_steps": 1,
        "save_strategy": "no",
        "router_aux_loss_coef": 0.0,
        "shuffle_dataset": False,
        "disable_tqdm": True,
    }
    return cls(**{**{name: value for name, value in wanted.items() if name in fields}, **changes})


def trainer(model, dataset, *, args=None, cls: type = SFTTrainer, processing_class=None, **arguments) -> SFTTrainer:
    """A trainer; settings go to `args`, what `SFTTrainer` takes itself is told apart by name."""
    own = {"data_collator", "eval_dataset", "peft_config", "compute_loss_func", "compute_metrics", "callbacks"}
    extra = {name: arguments.pop(name) for name in own & arguments.keys()}
    args = args or config(**arguments)
    return cls(
        model=model, args=args, train_dataset=dataset, processing_class=processing_class or tiny_tokenizer(), **extra
    )


def rows_of_documents(documents: list[torch.Tensor], **columns) -> Dataset:
    """One document a row."""
    return Dataset.from_dict({"input_ids": [document.tolist() for document in documents], **columns})


def packed_rows(*rows: list[torch.Tensor]) -> Dataset:
    """Rows that hold several documents each, with their lengths, as `pack_dataset` writes them."""
    return Dataset.from_dict(
        {
            "input_ids": [torch.cat(documents).tolist() for documents in rows],
            "seq_lengths": [[len(document) for document in documents] for documents in rows],
        }
    )


def stream(dataset: Dataset, known: bool = True) -> IterableDataset:
    """The same rows as a stream, which knows its columns or not."""

    def rows():
        yield from dataset

    return IterableDataset.from_generator(rows, features=dataset.features if known else None)


def apart(model: torch.nn.Module, documents: list[torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    """Mean next-token loss over documents run alone, and its gradients."""
    targets = sum(len(document) - 1 for document in documents)
    model.train()
    total = 0.0
    for document in (d for d in documents if len(d) > 1):
        loss = summed_loss(log_probs(model, input_ids=document[None]), [document]) / targets
        loss.backward()
        total += loss.item()
    return total, gradients(model)


def step(built: SFTTrainer) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss of the trainer's first batch, through `compute_loss`, and its gradients."""
    batch = built._prepare_inputs(next(iter(built.get_train_dataloader())))
    built.model.train()
    loss = built.compute_loss(built.model, batch)
    loss.backward()
    return loss.item(), gradients(built.model)


def padding(examples: list[dict]) -> dict[str, torch.Tensor]:
    """A user's collator that pads, and knows nothing of documents."""
    rows = [torch.tensor(example["input_ids"]) for example in examples]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return {"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)}
