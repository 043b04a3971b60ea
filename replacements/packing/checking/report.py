"""What a check found, as a value, in words and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from replacements.packing.verdict import Verdict


@dataclass(frozen=True)
class LayerKind:
    """One class of layers that look at other tokens.

    Attributes:
        name: The class.
        count: How many the architecture has; 0 where that is not counted.
        ops: The ops that are given the boundaries; empty for attention and for what is not known.
        stock: How far an output moves when the document before is another, relative to its size, as transformers
            and TRL run the model; `None` if it could not be run.
        patched: The same with the patch; `None` if the model is not packed.
        isolated: Whether stock and patched keep documents apart; `None` for what was not run.
    """

    name: str
    count: int
    ops: tuple[str, ...]
    stock: float | None
    patched: float | None
    isolated: tuple[bool | None, bool | None]


@dataclass(frozen=True)
class OpBackend:
    """What would run an op here.

    Attributes:
        op: The op.
        backend: Package and kernel, or `torch`.
        detail: How it did in its self-test, or why it is torch.
    """

    op: str
    backend: str
    detail: str


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        model: As the user named it.
        built: Class of the model that was run.
        weights: `its own`, or `random, small`.
        layers: Decoder layers of the architecture.
        verdict: The guard's.
        stock: How far a document moves, in nats, when the one before it is another: without the patch. `None` if it
            could not be run.
        patched: The same with it; `None` if the model is not packed.
        kinds: By kind of layer.
        backends: By op.
        install: Packages that would make it faster, as for pip.
        device: Where it was run.
        versions: Of torch, transformers and trl.
        notes: What the user should know of how it was checked.
    """

    model: str
    built: str
    weights: str
    layers: int
    verdict: Verdict
    stock: float | None
    patched: float | None
    kinds: tuple[LayerKind, ...]
    backends: tuple[OpBackend, ...]
    install: tuple[str, ...]
    device: str
    versions: dict[str, str]
    notes: tuple[str, ...] = ()

    @property
    def packs(self) -> bool:
        """Whether a trainer would pack this model."""
        return self.verdict.action == "pack"

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if not self.packs:
            return f"Trains padded [{self.verdict.reason.code}]: {self.verdict.sentence}"
        if self.patched is None:
            return f"Would be packed, but that {self.built} keeps the documents of a row apart was not tried."
        leaking = [kind for kind in self.kinds if kind.isolated[0] is False]
        if not leaking:
            return f"Safe to pack: {self.built} keeps the documents of a row apart, with the patch and without it."
        names = ", ".join(kind.name for kind in leaking)
        return (
            f"Safe to pack with the patch: {self.built} keeps the documents of a row apart. Without it, {names} "
            "would carry each document into the next."
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "model": self.model,
            "built": self.built,
            "weights": self.weights,
            "layers": self.layers,
            "verdict": self.verdict.action,
            "reason": None if self.verdict.reason is None else self.verdict.reason.code,
            "sentence": self.sentence,
            "stock_nats": self.stock,
            "patched_nats": self.patched,
            "kinds": [_kind_to_dict(kind) for kind in self.kinds],
            "backends": [vars(backend) for backend in self.backends],
            "install": list(self.install),
            "device": self.device,
            "versions": self.versions,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [self.sentence, *(f"  {kind.name}: {in_words(kind, self)}" for kind in self.kinds)]
        return "\n".join(lines)


def _kind_to_dict(kind: LayerKind) -> dict[str, Any]:
    isolated = dict(zip(("stock", "patched"), kind.isolated, strict=True))
    return {**vars(kind), "ops": list(kind.ops), "isolated": isolated}


def in_words(kind: LayerKind, report: Report) -> str:
    """Stock and patched of a kind of layer, for a table."""
    return f"stock {stock_in_words(kind)}, patched {patched_in_words(kind, report)}"


def stock_in_words(kind: LayerKind) -> str:
    """Whether a kind of layer keeps documents apart without the patch, and by how much it does not."""
    return _in_words(kind.isolated[0], kind.stock)


def patched_in_words(kind: LayerKind, report: Report) -> str:
    """The same with the patch, or why the model is padded."""
    seen = _in_words(kind.isolated[1], kind.patched)
    if report.packs:
        return seen
    cause = kind.isolated[1] is False or (kind.isolated[1] is None and kind.isolated[0] is False)
    if not cause:
        return "padded"
    return f"padded: {report.verdict.reason.code if kind.patched is None else seen}"


def _in_words(isolated: bool | None, moved: float | None) -> str:
    if isolated is None or moved is None:
        return "not run"
    return "isolated" if isolated else f"leaks {moved:.0%}"
