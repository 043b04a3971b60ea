"""What the rewritten dataset preparation of unsloth_zoo calls, and where TRL's trainer hands over to it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from patcher._log import say_once
from patcher._recompile import is_rewritten

_MODULE = "unsloth_zoo.dataset_utils"
_FUNCTION = "sft_prepare_dataset"
#: The only strategy that cuts a document to the row; all others go on in the next row and lose nothing.
_CUTTING = "bfd"


def takes_over() -> bool:
    """Whether the zoo's function is loaded and rewritten, so that TRL's trainer prepares its data with it."""
    if is_rewritten(_zoo_function()):
        return True
    state = "is not imported" if _MODULE not in sys.modules else "is not rewritten"
    say_once(
        "zoo not there",
        f"unsloth_zoo was asked for, but {_MODULE} {state}: TRL prepares the data itself. Import it before the trainer "
        "is built, or leave PATCHER_ZOO unset; `patcher status` says what is in place.",
    )
    return False


def prepare_dataset(*args: Any) -> Any:
    """Calls the zoo's function with what `SFTTrainer._prepare_dataset` was given."""
    return _zoo_function()(*args)


def truncates(flag: bool, max_length: int | None, args: Any, packing: bool) -> bool:
    """Whether documents are cut to `max_length` tokens while they are tokenized.

    Args:
        flag: What the zoo decided.
        max_length: Longest document in tokens; `None` is no limit, as TRL documents it.
        args: The trainer's config.
        packing: Whether this dataset will be packed.

    Returns:
        False where packing keeps every token and where there is no limit, else `flag`.
    """
    return bool(flag) and max_length is not None and not (packing and _keeps_every_token(args))


def pack(dataset: Any, seq_length: int, strategy: str = _CUTTING, map_kwargs: dict[str, Any] | None = None) -> Any:
    """Packs with TRL's `pack_dataset`, given those arguments that it has.

    Args:
        dataset: Tokenized documents.
        seq_length: Tokens in a row.
        strategy: TRL's `packing_strategy`; dropped where there is but one.
        map_kwargs: Arguments of `Dataset.map`.

    Raises:
        ImportError: TRL has no `pack_dataset`.
    """
    packer = _packer()
    optional = {"strategy": strategy, "map_kwargs": map_kwargs}
    return packer(dataset, seq_length, **{name: value for name, value in optional.items() if _accepts(packer, name)})


def _keeps_every_token(args: Any) -> bool:
    return not _accepts(_packer(), "strategy") or getattr(args, "packing_strategy", _CUTTING) != _CUTTING


def _accepts(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _packer() -> Callable[..., Any]:
    import trl

    packer = getattr(trl, "pack_dataset", None)
    if packer is None:
        raise ImportError(f"trl {trl.__version__} has no `pack_dataset`. Update TRL, or train with `packing=False`.")
    return packer


def _zoo_function() -> Any:
    return getattr(sys.modules.get(_MODULE), _FUNCTION, None)
