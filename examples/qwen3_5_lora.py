"""LoRA on a Qwen3.5 with packing: the script of any TRL user, plus one import.

    python examples/qwen3_5_lora.py
    python examples/qwen3_5_lora.py --model Qwen/Qwen3.5-0.8B --dataset trl-lib/Capybara --max-length 4096

Without arguments it trains a tiny random model on a few texts, offline, in seconds.
"""

from __future__ import annotations

import argparse

import tiny
import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

import patcher

#: The projections of linear attention and of attention, and those of the MLP.
TARGETS = [
    "in_proj_qkv",
    "in_proj_z",
    "out_proj",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
]


def main() -> None:
    """Trains, and says what the trainer did with the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder or a hub id; a tiny random model if left out")
    parser.add_argument("--dataset", help="of the hub; a few texts if left out")
    parser.add_argument("--max-length", type=int, default=256, help="tokens of a packed row")
    parser.add_argument("--max-steps", type=int, default=3)
    parser.add_argument("--output", default="qwen3_5_lora")
    given = parser.parse_args()

    if given.model:
        model, tokenizer = AutoModelForCausalLM.from_pretrained(given.model), AutoTokenizer.from_pretrained(given.model)
    else:
        tokenizer = tiny.tokenizer(tiny.documents())
        model = tiny.model(len(tokenizer))
    rows = (
        load_dataset(given.dataset, split="train") if given.dataset else Dataset.from_dict({"text": tiny.documents()})
    )

    trainer = SFTTrainer(
        model,
        args=SFTConfig(
            given.output,
            packing=True,
            max_length=given.max_length,
            max_steps=given.max_steps,
            per_device_train_batch_size=1,
            learning_rate=2e-4,
            bf16=torch.cuda.is_available(),
            logging_steps=1,
            save_strategy="no",
            report_to=[],
        ),
        train_dataset=rows,
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, target_modules=TARGETS),
    )
    trainer.train()
    trainer.save_model()
    last = next(entry for entry in reversed(trainer.state.log_history) if "packing/packed" in entry)
    print(f"packed: {last['packing/packed'] == 1}, documents in a row: {last.get('packing/documents_per_row', 1):.1f}")
    print(patcher.status())


if __name__ == "__main__":
    main()
