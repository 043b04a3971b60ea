"""Packing without TRL: transformers' own trainer and its flattening collator.

    python examples/transformers_trainer.py

`patcher.pack(model)` is the one line; it refuses a model that cannot keep documents apart. The collator joins the
documents of a batch into one row, whose `position_ids` restart at each of them.
"""

from __future__ import annotations

import tempfile

import tiny
from datasets import Dataset
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

import patcher


def main() -> None:
    """Trains three steps of eight documents each."""
    texts = tiny.documents()
    tokenizer = tiny.tokenizer(texts)
    model = patcher.pack(tiny.model(len(tokenizer)))
    rows = Dataset.from_dict({"input_ids": tokenizer(texts)["input_ids"]})
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder, per_device_train_batch_size=8, max_steps=3, logging_steps=1, save_strategy="no", report_to=[]
            ),
            train_dataset=rows,
            data_collator=DataCollatorWithFlattening(),
        )
        trainer.train()


if __name__ == "__main__":
    main()
