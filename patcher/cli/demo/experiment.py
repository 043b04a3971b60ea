"""The demo from text to report."""

from __future__ import annotations

import logging
import os
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import patcher
from patcher.cli.demo import data, isolation, model, training
from patcher.cli.demo.report import Report, Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress
    from transformers import PreTrainedTokenizerFast

    from patcher.cli.demo.settings import Settings


def run(settings: Settings, output: Path, progress: Progress) -> Report:
    """Train both runs, measure the isolation, and report.

    Args:
        settings: sizes and seed.
        output: folder for the tokenizer's cache.
        progress: where to show how far it is; started and stopped by the caller.
    """
    began = time.perf_counter()
    stage = progress.add_task("load torch, transformers, trl", total=None)
    _quiet()
    # Nothing is fetched here; without this, some TRL releases report each run to the hub.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    texts = data.sections()
    tok = data.tokenizer(texts, settings.vocab, output)
    corpus = data.corpus(texts, tok, settings)
    patcher.install()
    with tempfile.TemporaryDirectory() as scratch:
        packing = training.trainer(corpus, tok, settings, packing=True, folder=Path(scratch, "packed"))
        training.require_packing(packing)
        padding = training.trainer(corpus, tok, settings, packing=False, folder=Path(scratch, "padded"))
        training.same_steps(packing, padding, settings)
        progress.update(stage, total=1, completed=1)
        packed = _train(packing, "train packed", progress)
        padded = _train(padding, "train padded", progress)
    stage = progress.add_task("packed against alone", total=None)
    stock, positions, patched = _isolation(packing, tok, settings)
    report = Report(
        parameters=sum(parameter.numel() for parameter in packing.model.parameters()),
        documents=len(corpus.train),
        tokens=corpus.tokens,
        stock=stock,
        stock_positions=positions,
        patched=patched,
        documents_a_step=settings.rows_a_step * len(corpus.train) / len(packing.train_dataset),
        packed=Run(packed, training.loss_alone(packing.model, corpus.held_out)),
        padded=Run(padded, training.loss_alone(padding.model, corpus.held_out)),
        seconds=time.perf_counter() - began,
    )
    progress.update(stage, total=1, completed=1)
    return report


def _train(trainer, name: str, progress: Progress) -> training.Curve:
    task = progress.add_task(name, total=None)
    return training.run(trainer, lambda done, total: progress.update(task, completed=done, total=total))


def _isolation(trainer, tok: PreTrainedTokenizerFast, settings: Settings) -> tuple[isolation.Outcome, ...]:
    """Stock with TRL's batch, stock with position_ids only, and patched with TRL's batch; one set of weights."""
    rows = isolation.longest_mix(trainer, settings.measured_rows)
    # First, because taking the patch back takes it off the trained model too.
    patched = isolation.forward(trainer.model, isolation.batches(trainer, rows))
    with _unpatched():
        stock_model = model.build(tok, settings).to(trainer.model.device)
        stock_model.load_state_dict(trainer.model.state_dict())
        truth = isolation.alone(stock_model, rows)
        batches = isolation.batches(trainer, rows)
        stock = isolation.measure(stock_model, batches, truth)
        positions = isolation.measure(stock_model, [isolation.only_positions(batch) for batch in batches], truth)
    return stock, positions, isolation.compare(patched, truth)


@contextmanager
def _unpatched() -> Iterator[None]:
    patcher.uninstall()
    try:
        yield
    finally:
        patcher.install()


def _quiet() -> None:
    """Silence what would write over the progress bar; warnings of the patcher stay."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.getLogger("trl").setLevel(logging.ERROR)
