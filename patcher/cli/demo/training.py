"""The two runs of the demo, each an ordinary ``trl.SFTTrainer``."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patcher.cli.demo import model as models
from patcher.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from transformers import PreTrainedModel, PreTrainedTokenizerFast
    from trl import SFTTrainer

    from patcher.cli.demo.data import Corpus
    from patcher.cli.demo.settings import Settings


@dataclass
class Curve:
    """What one run saw, step by step.

    Attributes:
        tokens: real tokens (no padding) seen so far, after each step.
        loss: training loss of each step, nats per token.
        clock: seconds since the run began, after each step.
    """

    tokens: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Real tokens per second after the first step, whose time is mostly warming up."""
        if len(self.clock) < 2:
            return math.nan
        return (self.tokens[-1] - self.tokens[0]) / (self.clock[-1] - self.clock[0])


def trainer(
    corpus: Corpus, tok: PreTrainedTokenizerFast, settings: Settings, *, packing: bool, folder: Path
) -> SFTTrainer:
    """An SFTTrainer on the demo's model and documents.

    Args:
        corpus: the documents, tokenized.
        tok: their tokenizer.
        settings: sizes and seed.
        packing: pack the documents, or pad them.
        folder: where the trainer may write.
    """
    import torch
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    args = SFTConfig(
        output_dir=str(folder),
        packing=packing,
        max_length=settings.context,
        num_train_epochs=settings.epochs,
        max_steps=settings.steps or -1,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        seed=settings.seed,
        bf16=False,  # the isolation is measured in float32
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    return SFTTrainer(
        model=models.build(tok, settings),
        args=args,
        train_dataset=Dataset.from_dict({"input_ids": corpus.train}),
        processing_class=tok,
    )


def same_steps(packed: SFTTrainer, padded: SFTTrainer, settings: Settings) -> None:
    """Have both trainers see the same documents in the same step: packed rows, and their documents padded together.

    With batches drawn by each trainer itself the two losses would differ by the luck of the draw.
    """
    rows = list(range(len(packed.train_dataset)))
    random.Random(settings.seed).shuffle(rows)
    documents: dict[tuple[int, ...], list[int]] = {}
    for index, ids in enumerate(padded.train_dataset["input_ids"]):
        documents.setdefault(tuple(ids), []).append(index)
    of_row = {row: [documents[tuple(part)].pop() for part in _parts(packed.train_dataset[row])] for row in rows}
    steps = [rows[start : start + settings.rows_a_step] for start in range(0, len(rows), settings.rows_a_step)]
    _feed(packed, steps)
    _feed(padded, [[document for row in step for document in of_row[row]] for step in steps])


def _parts(row: dict[str, list[int]]) -> Iterator[list[int]]:
    """The documents of a packed row."""
    start = 0
    for length in row["seq_lengths"]:
        yield row["input_ids"][start : start + length]
        start += length


def _feed(built: SFTTrainer, batches: list[list[int]]) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(built.train_dataset, batch_sampler=batches, collate_fn=built.data_collator)
    built.get_train_dataloader = lambda: built.accelerator.prepare(loader)


def require_packing(built: SFTTrainer) -> None:
    """Refuse to go on with a trainer that the guard has switched to padding.

    Raises:
        CliError: the trainer does not pack.
    """
    if not built.args.packing:
        verdict = getattr(built, "_patcher_verdict", None)
        reason = verdict.sentence if verdict is not None else "the patch is not in place"
        raise CliError(f"the demo cannot pack here: {reason}", "patcher doctor")


def run(built: SFTTrainer, advance: Callable[[int, int], None]) -> Curve:
    """Train to the end and return the curve.

    Args:
        built: the trainer.
        advance: called after each step with the steps done and the steps in all.
    """
    curve = Curve()
    # The trainer's own printer would write a dictionary a step over the progress bar.
    from transformers import PrinterCallback

    built.remove_callback(PrinterCallback)
    built.add_callback(_recorder(curve, advance))
    built.train()
    return curve


def _recorder(curve: Curve, advance: Callable[[int, int], None]):
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.perf_counter()
            advance(0, state.max_steps)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.now = time.perf_counter() - self.began
            advance(state.global_step, state.max_steps)

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            if logs and "loss" in logs and "num_tokens" in logs:
                curve.tokens.append(int(logs["num_tokens"]))
                curve.loss.append(float(logs["loss"]))
                curve.clock.append(self.now)

    return Recorder()


def loss_alone(model: PreTrainedModel, documents: list[list[int]]) -> float:
    """Mean negative log-likelihood, nats per token, of documents that are each run alone."""
    import torch

    from replacements.packing.measuring import undisturbed

    total, count = 0.0, 0
    with undisturbed(model), torch.no_grad():
        for document in documents:
            ids = torch.tensor([document], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            count += len(document) - 1
    return total / count
