"""What the guard decides from: the arguments of a trainer that is being built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replacements.packing.columns import unread_boundaries

if TYPE_CHECKING:
    from torch import nn

#: Column in which rows that are packed already keep the lengths of their documents.
_LENGTHS = "seq_lengths"
#: Methods by which a collator makes a batch.
_COLLATES = ("torch_call", "__call__")
#: Collators of other libraries that join the examples of a batch into one row.
_FLATTENING_COLLATORS = ("DataCollatorWithFlattening",)


@dataclass(frozen=True)
class Situation:
    """What the guard decides from, as `SFTTrainer.__init__` has it before it reads `packing`."""

    model: nn.Module
    args: Any
    data_collator: Any = None
    train_dataset: Any = None
    eval_dataset: Any = None
    processing_class: Any = None
    peft_config: Any = None

    @property
    def asks(self) -> bool:
        """Whether anything here puts several documents into one row that are to be kept apart."""
        if self.args.padding_free or self.flattens:
            return True
        if (self.args.packing or getattr(self.args, "eval_packing", None)) and not self.wrapped:
            return True
        return (self.own_collator is None or _is_trls(self.data_collator)) and self.packed_beforehand

    @property
    def wrapped(self) -> bool:
        """Whether rows are blocks cut from one stream of tokens, in which documents are not kept apart by intent."""
        return getattr(self.args, "packing_strategy", None) == "wrapped"

    @property
    def own_collator(self) -> Any:
        """A collator of the user's that is not TRL's."""
        return None if completes(self.data_collator) else self.data_collator

    @property
    def flattens(self) -> bool:
        """Whether the user's collator joins the examples of a batch into one row."""
        named = any(cls.__name__ in _FLATTENING_COLLATORS for cls in type(self.data_collator).__mro__)
        return named or bool(getattr(self.data_collator, "padding_free", False))

    @property
    def datasets(self) -> Iterator[Any]:
        """Every dataset that was given; evaluation may have several."""
        several = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"eval": self.eval_dataset}
        return (dataset for dataset in (self.train_dataset, *several.values()) if dataset is not None)

    @property
    def packed_beforehand(self) -> bool:
        """Whether rows hold several documents already: token ids beside a list of lengths."""
        return any(_is_packed(dataset) for dataset in self.datasets)

    @property
    def unread_boundaries(self) -> str | None:
        """The column by which rows hold several documents and which TRL's collator does not read, if there is one."""
        if self.own_collator is not None and not self.flattens:
            return None
        return next(filter(None, map(unread_boundaries, self.datasets)), None)

    @property
    def prepares(self) -> bool:
        """Whether TRL prepares the datasets: tokenizes, truncates, packs."""
        return not (getattr(self.args, "dataset_kwargs", None) or {}).get("skip_prepare_dataset", False)

    @property
    def streams_unknown_columns(self) -> bool:
        """Whether a dataset is a stream whose columns only reading it would tell; it is never read to find out."""
        return any(columns_of(dataset) is None for dataset in self.datasets)

    @property
    def adapter(self) -> Any:
        """The PEFT config that the model will be trained by: the one given, or the active one of a wrapped model."""
        if self.peft_config is not None or unwrapped(self.model) is self.model:
            return self.peft_config
        return self.model.peft_config.get(self.model.active_adapter)

    @property
    def sees(self) -> bool:
        """Whether the model is a vision-language model."""
        return getattr(unwrapped(self.model).config, "vision_config", None) is not None

    @property
    def model_name(self) -> str:
        """Class name of the transformers model."""
        return type(unwrapped(self.model)).__name__


def completes(collator: Any) -> bool:
    """Whether a collator is TRL's, whose batches can be completed; none given is TRL's too.

    A subclass is TRL's if what it overrides calls what it overrides: else no batch comes by to be completed.
    """
    if collator is None:
        return True
    lineage = type(collator).__mro__
    own = [vars(cls)[name] for cls in lineage[: _below_trls(lineage)] for name in _COLLATES if name in vars(cls)]
    return _is_trls(collator) and all(_names(method) & {*_COLLATES} for method in own)


def _is_trls(collator: Any) -> bool:
    """Whether a collator is TRL's or derives from it."""
    return _below_trls(type(collator).__mro__) < len(type(collator).__mro__)


def _below_trls(lineage: tuple[type, ...]) -> int:
    """How many classes stand before TRL's collator; all of them where it is not among them."""
    trls = (
        place
        for place, cls in enumerate(lineage)
        if cls.__name__ == "DataCollatorForLanguageModeling" and cls.__module__.startswith("trl.")
    )
    return next(trls, len(lineage))


def _names(method: Any) -> set[str]:
    """The attribute names that a method refers to; a wrapper counts as what it wraps."""
    return set(getattr(getattr(inspect.unwrap(method), "__code__", None), "co_names", _COLLATES))


def columns_of(dataset: Any) -> list[str] | None:
    """Names of a dataset's columns; `None` for a stream that does not know them, empty for what has no columns."""
    return getattr(dataset, "column_names", [])


def unwrapped(model: nn.Module) -> nn.Module:
    """The transformers model inside a PEFT wrapper."""
    base = getattr(model, "get_base_model", None)
    return base() if callable(base) else model


def _is_packed(dataset: Any) -> bool:
    if not {"input_ids", _LENGTHS} <= set(columns_of(dataset) or ()):
        return False
    features = getattr(dataset, "features", None) or {}
    lengths = features.get(_LENGTHS)
    return lengths is None or isinstance(lengths, list) or hasattr(lengths, "feature")
