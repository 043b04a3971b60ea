"""A training loop of your own on several GPUs, with accelerate.

    accelerate launch --num_processes 2 examples/accelerate_loop.py    # on GPUs
    torchrun --nproc-per-node 2 examples/accelerate_loop.py            # there, and on a CPU

`patcher.pack` comes before `accelerator.prepare`, which wraps the model. A batch says where its documents start by
`seq_idx`; nothing else is needed.
"""

from __future__ import annotations

import tiny
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import patcher

DOCUMENTS_PER_ROW = 8


def row(documents: list[list[int]]) -> dict[str, torch.Tensor]:
    """One packed row `[1, T]`; no document's first token is a target, for its predecessor is another document."""
    ids = torch.tensor([token for document in documents for token in document])
    seq_idx = torch.repeat_interleave(torch.arange(len(documents)), torch.tensor([len(d) for d in documents]))
    labels = ids.clone()
    labels[1:][seq_idx[1:] != seq_idx[:-1]] = -100
    return {"input_ids": ids[None], "labels": labels[None], "seq_idx": seq_idx.int()[None]}


def main() -> None:
    """Trains one epoch; every process takes its own rows."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    texts = tiny.documents()
    tokenizer = tiny.tokenizer(texts)
    model = patcher.pack(tiny.model(len(tokenizer)).train())
    loader = DataLoader(tokenizer(texts)["input_ids"], DOCUMENTS_PER_ROW, collate_fn=row, drop_last=True)
    # Rows differ in length, so each process reads its own instead of being sent a part of one.
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.print(f"loss {loss.item():.3f} on {batch['input_ids'].shape[1]} tokens of each process")
    accelerator.end_training()


if __name__ == "__main__":
    main()
