"""What a verification found, as a value, in words and as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from replacements.packing.tolerances import FACTOR, GRADIENT, LOG_PROB, LOSS
from replacements.packing.verdict import Verdict
from replacements.packing.verification.measure import Difference


@dataclass(frozen=True)
class Document:
    """One document, packed against alone.

    Attributes:
        row: Number of its row.
        place: Its place in the row; the first of a row has nothing in front of it.
        tokens: Its length.
        loss: Alone, mean over its tokens, in nats; `None` for a single token.
        scale: Mean size of its log-probabilities.
        floor: How far it is from itself alone in other batch shapes: what rounding does.
        stock: How far it is packed as transformers runs it; `None` if that could not be run.
        patched: The same with the patch; `None` if the model is not packed.
    """

    row: int
    place: int
    tokens: int
    loss: float | None
    scale: float
    floor: Difference
    stock: Difference | None
    patched: Difference | None


@dataclass(frozen=True)
class Verification:
    """Documents packed against the same documents alone.

    Attributes:
        model: As the user named it.
        verdict: The guard's on the model.
        documents: In order of the rows.
        epsilon: Spacing of the coarsest dtype that the model computes in.
        stock_error: Why the stock model could not be run on a packed row, or an empty string.
        notes: What the user should know of how it was verified.
    """

    model: str
    verdict: Verdict
    documents: tuple[Document, ...]
    epsilon: float
    stock_error: str = ""
    notes: tuple[str, ...] = ()

    def agrees(self, document: Document, difference: Difference | None) -> bool:
        """Whether a difference is rounding: within what other batch shapes and the dtype account for."""
        if difference is None:
            return False
        rounding = self.epsilon * document.scale
        limits = (
            (difference.log_prob, max(LOG_PROB, FACTOR * document.floor.log_prob, FACTOR * rounding)),
            (difference.loss, max(LOSS, FACTOR * document.floor.loss, rounding)),
            (
                difference.gradient or 0.0,
                max(GRADIENT, FACTOR * (document.floor.gradient or 0.0), FACTOR * self.epsilon),
            ),
        )
        return self.believable(document) and all(value <= most for value, most in limits)

    def believable(self, document: Document) -> bool:
        """Whether a document's floor is rounding at all: a model that looks ahead moves by more."""
        return document.floor.log_prob <= max(LOG_PROB, FACTOR * math.sqrt(self.epsilon) * document.scale)

    @property
    def passed(self) -> bool:
        """Whether every packed document is itself alone."""
        return self.verdict.action == "pack" and all(self.agrees(d, d.patched) for d in self.documents)

    @property
    def sentence(self) -> str:
        """The outcome in words."""
        if self.verdict.action != "pack":
            return f"Trains padded [{self.verdict.reason.code}]: {self.verdict.sentence}"
        wrong = [d for d in self.documents if not self.agrees(d, d.patched)]
        leaking = sum(1 for d in self.documents if d.stock is not None and not self.agrees(d, d.stock))
        stock = f"refuses the rows ({self.stock_error})" if self.stock_error else f"gets {leaking} wrong"
        share = f"{len(wrong)} of {len(self.documents)} documents"
        if wrong and not any(self.believable(d) for d in wrong):
            return (
                f"{share} are not themselves in another batch shape, with nothing in front of them: no leak, but this "
                "transformers computes some lengths otherwise alone. Update it, or report it with this output."
            )
        if wrong:
            return (
                f"{share} differ packed from alone. Train with `packing=False, "
                "padding_free=False` and please report it."
            )
        same = f"All {len(self.documents)} documents are packed what they are alone."
        return f"{same} Without the patch the model {stock}."

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "passed": self.passed,
            "verdict": self.verdict.action,
            "reason": None if self.verdict.reason is None else self.verdict.reason.code,
            "sentence": self.sentence,
            "epsilon": self.epsilon,
            "stock_error": self.stock_error,
            "documents": [self._document(document) for document in self.documents],
            "notes": list(self.notes),
        }

    def _document(self, document: Document) -> dict[str, Any]:
        runs = {name: getattr(document, name) for name in ("floor", "stock", "patched")}
        return {
            **{name: getattr(document, name) for name in ("row", "place", "tokens", "loss")},
            **{name: None if run is None else {**vars(run), "along": list(run.along)} for name, run in runs.items()},
            "agrees": {name: self.agrees(document, runs[name]) for name in ("stock", "patched")},
        }

    def plot(self, path: Any) -> None:
        """Writes a PNG that shows where along the documents differences sit; needs matplotlib.

        Raises:
            ImportError: There is no matplotlib.
        """
        from replacements.packing.verification.picture import draw

        draw(self, path)

    def __str__(self) -> str:
        def worst(name: str) -> str:
            found = [getattr(d, name).log_prob for d in self.documents if getattr(d, name) is not None]
            return f"{max(found):.1e}" if found else "not run"

        figures = ", ".join(f"{name} {worst(name)}" for name in ("floor", "stock", "patched"))
        return f"{self.sentence}\nLargest difference of a log-probability, in nats: {figures}"
