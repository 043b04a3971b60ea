"""Attention masks on packed rows.

Transformers keeps documents apart by `position_ids` only where no attention mask is given: a mask of ones, which some
libraries add, silently switches that off.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from replacements.packing.boundaries import BoundaryError, segments_to_positions
from replacements.packing.current import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from replacements.kernels.segments import Segments


def drop_attention_mask(kwargs: dict[str, Any], segments: Segments) -> None:
    """Removes a two-dimensional `attention_mask` from the arguments of a packed forward.

    A mask of ones says nothing. Zeros are allowed where no real token of the same document follows them: what is
    causal cannot see them.

    Raises:
        BoundaryError: The mask hides tokens in front of real tokens of their own document, or it is a prepared mask
            that lets documents see each other.
    """
    mask = kwargs.get("attention_mask")
    for given in mask.values() if isinstance(mask, dict) else [mask]:
        if isinstance(given, torch.Tensor) and given.ndim == 4:
            _check_prepared_mask(given, segments)
    if not isinstance(mask, torch.Tensor) or mask.ndim != 2:
        return
    kept = mask.detach().cpu().numpy().astype(bool).ravel()
    same_document = np.ones(kept.size, dtype=bool)
    same_document[segments.offsets[1:-1]] = False
    if np.any(kept[1:] & ~kept[:-1] & same_document[1:]):
        raise BoundaryError(
            "`attention_mask` hides tokens in front of others of the same document in a packed row. Pad packed rows "
            "on the right (`padding_side='right'`), or leave the mask out."
        )
    kwargs["attention_mask"] = None


def _check_prepared_mask(mask: torch.Tensor, segments: Segments) -> None:
    """Raises if a mask `[B, 1 or heads, T, T]`, boolean or added to the scores, joins documents."""
    rows, length = segments.rows, segments.total // segments.rows
    if mask.shape[-2:] != (length, length):
        return
    allowed = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    document = segments.seq_idx(mask.device).view(rows, 1, length)
    if bool((allowed & (document[..., :, None] != document[..., None, :])).any()):
        raise BoundaryError(
            "`attention_mask` lets the documents of a packed row see each other. Make it block-diagonal, or leave it "
            "out: attention then goes by the positions."
        )


def sees_documents(create_mask: Callable[..., Any]) -> Callable[..., Any]:
    """A mask function that looks at the documents of the current row, for models that do not pass it positions."""

    @torch.compiler.disable
    @functools.wraps(create_mask)
    def call(*args: Any, **kwargs: Any) -> Any:
        scope = current()
        if scope is not None and scope.segments is not None:
            device = next(v.device for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
            kwargs["position_ids"] = segments_to_positions(scope.segments, device)
        return create_mask(*args, **kwargs)

    return call
