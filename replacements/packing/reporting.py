"""What packing does, in the trainer's own log: the console, its history, and whatever `report_to` names.

TRL's trainer keeps a table of metrics, which it averages and adds to every log. These are put into it:

- `packing/packed`: 1 where rows hold several documents, 0 where the trainer was to pack and trains padded; then
  `packing/reason/<code>` says why.
- `packing/documents_per_row`.
- `packing/real_tokens_per_second`: of the rank that logs, without padding.
- `packing/padding`: the share of the rows that is padding.
- `packing/padding_saved`: the share that would have been more, had the documents of each batch been padded to the
  longest of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from replacements.packing.current import current
from replacements.packing.runtime import runtime_of

if TYPE_CHECKING:
    from replacements.packing.verdict import Verdict

_TABLE = "_metrics"


def report(trainer: Any, verdict: Verdict) -> None:
    """Adds the metrics of packing to a trainer's log; leaves a trainer alone that was not asked to pack.

    Args:
        trainer: A finished trainer, the runtime attached to its model if the verdict is to pack.
        verdict: The guard's.
    """
    if verdict.action not in ("pack", "pad") or not isinstance(getattr(trainer, _TABLE, None), dict):
        return
    meter = None
    if verdict.action == "pack":
        runtime = runtime_of(trainer.model)
        meter = Meter(getattr(trainer.data_collator, "pad_token_id", None))
        runtime.hold([runtime.backbone.register_forward_pre_hook(meter, with_kwargs=True)])
    trainer.add_callback(Report(getattr(trainer, _TABLE), verdict, meter))


class Meter:
    """Counts what the rows of training hold, without waiting for the device.

    Args:
        pad_token_id: Token that fills rows; `None` if rows are not filled.
    """

    def __init__(self, pad_token_id: int | None):
        self.pad_token_id = pad_token_id
        self.reset()

    def reset(self) -> None:
        """Starts anew."""
        self.rows = self.documents = self.slots = self.padded_slots = 0
        self.padding: torch.Tensor | int = 0
        self.since = time.perf_counter()

    @torch.compiler.disable
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A hook of the backbone, run behind that which opens the scope."""
        scope = current()
        if scope is None or not module.training:
            return
        padding, tails = self._padding(kwargs.get("input_ids"))
        segments = scope.segments
        # Without segments every row is one document, whose padding is no document of its own.
        documents = scope.rows if segments is None else segments.count - tails
        self.rows += scope.rows
        self.documents = self.documents + documents
        self.slots += scope.rows * scope.length
        self.padded_slots = self.padded_slots + documents * (scope.length if segments is None else segments.longest)
        self.padding = self.padding + padding

    def _padding(self, ids: torch.Tensor | None) -> tuple[torch.Tensor | int, torch.Tensor | int]:
        """Tokens that fill the ends of rows, and how many rows have such an end; a filled end is a segment of its own.

        One pad token at the end is taken for the end of a document where it is the end-of-text token as well.
        """
        if ids is None or self.pad_token_id is None:
            return 0, 0
        filled = (ids == self.pad_token_id).flip(-1).int().cumprod(-1).sum(-1)
        filled = torch.where(filled > 1, filled, 0)
        return filled.sum(), (filled > 0).sum()

    def read(self) -> dict[str, float]:
        """The metrics since the last reset; empty if nothing was trained on."""
        if not self.rows:
            return {}
        seconds = max(time.perf_counter() - self.since, 1e-9)
        real = self.slots - int(self.padding)
        padding = 1 - real / self.slots
        return {
            "packing/documents_per_row": int(self.documents) / self.rows,
            "packing/real_tokens_per_second": real / seconds,
            "packing/padding": padding,
            "packing/padding_saved": max(0.0, 1 - real / max(int(self.padded_slots), 1) - padding),
        }


class Report(TrainerCallback):
    """Puts the metrics into the trainer's table just before it logs.

    Args:
        table: The trainer's, mode to name to the values to average.
        verdict: The guard's.
        meter: Of the packed rows, if there are any.
    """

    def __init__(self, table: dict[str, Any], verdict: Verdict, meter: Meter | None):
        self.table = table
        self.meter = meter
        self.fixed = {"packing/packed": float(verdict.action == "pack")}
        if verdict.reason is not None:
            self.fixed[f"packing/reason/{verdict.reason.code}"] = 1.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Building a trainer and starting it are no training."""
        if self.meter is not None:
            self.meter.reset()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Behind transformers' own callback, which has decided by now whether this step is logged."""
        if not control.should_log:
            return
        metrics = self.fixed if self.meter is None else {**self.fixed, **self.meter.read()}
        for name, value in metrics.items():
            self.table["train"][name] = [value]
        if self.meter is not None:
            self.meter.reset()
