"""The arguments of a model's forward, as the doors read and set them."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from replacements.kernels.segments import Segments
from replacements.packing.boundaries import CACHES, BoundaryError, segments_to_positions
from replacements.packing.masks import drop_attention_mask


def isolate(module: nn.Module, kwargs: dict[str, Any], segments: Segments, positions_agree: bool) -> None:
    """Sets the arguments without which attention does not keep the documents of a row apart."""
    if any(kwargs.get(name) is not None for name in CACHES):
        raise BoundaryError(
            "A packed row was given a cache: its documents cannot be continued from, or leave behind, one state. "
            "Leave the cache out of calls with packed rows."
        )
    accepted = _parameters(module)
    drop_attention_mask(kwargs, segments)
    if "use_cache" in accepted or accepted["**"]:
        kwargs["use_cache"] = False
    if not positions_agree and ("position_ids" in accepted or accepted["**"]):
        kwargs["position_ids"] = segments_to_positions(segments, device_of((), kwargs))


def show_text_plane(kwargs: dict[str, Any], segments: Segments) -> None:
    """Puts the text positions in front of the three planes of multimodal rope.

    Decoders with multimodal rope build the attention mask from a fourth plane, and without it from no positions at
    all: attention would not see the documents.
    """
    positions = kwargs.get("position_ids")
    if positions is not None and positions.ndim == 3 and positions.shape[0] == 3:
        text = segments_to_positions(segments, positions.device).to(positions.dtype)
        kwargs["position_ids"] = torch.cat([text[None].expand(1, *positions.shape[1:]), positions])


def uses_flash_attention(module: nn.Module) -> bool:
    """Whether the attention of a backbone takes variable lengths."""
    return "flash" in str(getattr(module.config, "_attn_implementation", None))


def expand_for_flash_attention(kwargs: dict[str, Any], segments: Segments) -> None:
    """The boundaries as variable-length attention takes them, so that no layer has to read them off the device."""
    kwargs["cu_seq_lens_q"] = kwargs["cu_seq_lens_k"] = segments.cu_seqlens(device_of((), kwargs))
    kwargs["max_length_q"] = kwargs["max_length_k"] = segments.longest


def device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """The device of the first tensor among the arguments."""
    return next(value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))


def by_name(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional arguments under their names, so that a door can read and set them."""
    if not args:
        return args, dict(kwargs)
    names = [name for name in _parameters(module) if name != "**"]
    if len(names) < len(args):
        return args, dict(kwargs)
    return (), {**dict(zip(names, args, strict=False)), **kwargs}


def _parameters(module: nn.Module) -> dict[str, bool]:
    """Names a module's forward takes by keyword, and under `**` whether it takes any."""
    parameters = inspect.signature(module.forward).parameters.values()
    named = {p.name: True for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    named["**"] = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return named


def shape_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Rows and tokens of a batch, `(B, T)`.

    Raises:
        BoundaryError: There is nothing to read them from.
    """
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(kwargs.get(name), torch.Tensor):
            return kwargs[name].shape[0], kwargs[name].shape[1]
    if args and isinstance(args[0], torch.Tensor):
        return args[0].shape[0], args[0].shape[1]
    raise BoundaryError(
        "A model with packing attached was called without `input_ids` or `inputs_embeds`; the documents of the "
        "row cannot be found. Pass one of them by keyword."
    )
