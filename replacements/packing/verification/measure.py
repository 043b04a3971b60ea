"""Runs documents alone, in other batch shapes and packed, and says how far apart the results are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from replacements.packing.measuring import device_of, largest_difference, log_probs, packed_row

if TYPE_CHECKING:
    from torch import nn

#: Tokens behind a document in one of the shapes that show how far rounding goes.
_TAIL = 9


@dataclass(frozen=True)
class Result:
    """A document's part of a forward and backward.

    Attributes:
        log_probs: `[L, V]`, float32 at least.
        loss: Mean next-token loss in nats; `None` for a single token.
        gradients: Of that loss, one tensor a trainable parameter; empty if they were not asked for.
    """

    log_probs: torch.Tensor
    loss: float | None
    gradients: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Difference:
    """How far two results of one document are apart.

    Attributes:
        log_prob: Largest difference of a log-probability, in nats.
        loss: Of the mean loss, in nats.
        gradient: Norm of the difference, relative to the norm; `None` without gradients.
        along: For each token the largest difference over the vocabulary, in nats.
    """

    log_prob: float
    loss: float
    gradient: float | None
    along: tuple[float, ...]

    @classmethod
    def between(cls, got: Result, wanted: Result) -> Difference:
        """The difference of two results of one document."""
        along = (got.log_probs - wanted.log_probs).abs().amax(-1).tolist()
        apart = largest_difference(got.log_probs, wanted.log_probs)
        loss = abs(got.loss - wanted.loss) if got.loss is not None and wanted.loss is not None else 0.0
        return cls(apart, loss, _relative(got.gradients, wanted.gradients), tuple(along))

    def larger(self, other: Difference) -> Difference:
        """The larger of two differences, number by number."""
        gradients = [value for value in (self.gradient, other.gradient) if value is not None]
        return Difference(
            max(self.log_prob, other.log_prob),
            max(self.loss, other.loss),
            max(gradients, default=None),
            tuple(map(max, self.along, other.along)),
        )


class Runner:
    """Runs a model in eval mode.

    Args:
        model: A causal language model.
        gradients: Whether gradients are wanted.
    """

    def __init__(self, model: nn.Module, gradients: bool):
        self.model = model
        self.trained = [p for p in model.parameters() if p.requires_grad] if gradients else []
        self._device = device_of(model)

    def alone(self, document: Sequence[int]) -> Result:
        """A document by itself."""
        return self._result({"input_ids": self._tensor([document])}, document, 0)

    def elsewhere(self, document: Sequence[int]) -> Iterator[Result]:
        """The same in other batch shapes: twice in a batch, and with tokens behind it, which it cannot see."""
        twice = self._tensor([document, document])
        tail = (list(document) * (_TAIL // len(document) + 1))[:_TAIL]
        longer = self._tensor([[*document, *tail]])
        # One at a time: each has gradients as large as the model.
        return (self._result({"input_ids": ids}, document, 0) for ids in (twice, longer))

    def packed(self, row: Sequence[Sequence[int]], index: int, *, seq_idx: bool) -> Result:
        """One document of a packed row.

        Args:
            row: The documents of the row.
            index: Which of them.
            seq_idx: Whether the batch says where documents start, or restarting positions alone do.
        """
        inputs = packed_row([self._tensor(document) for document in row], seq_idx=seq_idx)
        return self._result(inputs, row[index], sum(len(document) for document in row[:index]))

    def _result(self, inputs: dict[str, torch.Tensor], document: Sequence[int], start: int) -> Result:
        wants = bool(self.trained) and len(document) > 1
        with torch.set_grad_enabled(wants):
            found = log_probs(self.model, inputs, slice(start, start + len(document)))
            if len(document) < 2:
                return Result(found.detach(), None, ())
            loss = -found[:-1].gather(1, self._tensor(document)[1:, None]).mean()
            gradients = torch.autograd.grad(loss, self.trained, allow_unused=True) if wants else ()
        filled = tuple(torch.zeros_like(p) if g is None else g for g, p in zip(gradients, self.trained, strict=False))
        return Result(found.detach(), float(loss.detach()), filled)

    def _tensor(self, ids: Sequence[int] | Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor(ids, dtype=torch.int64, device=self._device)


def _relative(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float | None:
    if not got or not wanted:
        return None
    apart = sum(float((a - b).double().square().sum()) for a, b in zip(got, wanted, strict=True))
    size = sum(float(b.double().square().sum()) for b in wanted)
    return (apart / max(size, 1e-30)) ** 0.5
