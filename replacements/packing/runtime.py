"""Attaches the boundaries to a model: two doors, the mixers between them, and the layers that are recomputed.

The outer door is the module the trainer calls. It takes `seq_idx` out of the batch, because many models drop keyword
arguments on the way down. The inner door is the backbone, the module that holds the decoder layers; losses that skip
the outer forward call it directly. Whichever is entered first opens a scope, and each closes what it opened.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from replacements.kernels.causal_conv1d import causal_conv1d
from replacements.kernels.segments import Segments
from replacements.packing import dispatch
from replacements.packing.boundaries import (
    CACHES,
    BoundaryError,
    find_documents,
    segments_to_positions,
    segments_to_seq_idx,
)
from replacements.packing.current import Scope, current, enter, leave
from replacements.packing.families import CONV, SEQ_IDX
from replacements.packing.handshake import check_handshake
from replacements.packing.masks import drop_attention_mask
from replacements.packing.recompute import bind_checkpoints, release_checkpoints
from replacements.packing.structure import Anatomy

_ATTRIBUTE = "_patcher_runtime"
_attached: weakref.WeakSet[Runtime] = weakref.WeakSet()
#: What travels in a batch for the doors alone; no model below them needs it.
_CONSUMED = ("seq_idx", "packed_seq_lengths", "cu_seqlens")


class Runtime:
    """The hooks of one attached model.

    Attributes:
        model: The module the trainer calls.
        backbone: The module that holds the decoder layers.
        mixers: Every recurrent mixer.
        packed_forwards: How many forwards held more than one document.
        checked: Whether the handshake has been made.
        watch: Called with the arguments of each forward whose rows are single documents; may raise.
    """

    def __init__(self, model: nn.Module):
        anatomy = Anatomy.of(model)
        self.model = model
        self.backbone = anatomy.backbone
        self.mixers = anatomy.mixers
        self.checkpointed = [module for module in model.modules() if hasattr(module, "gradient_checkpointing")]
        self.packed_forwards = 0
        self.checked = False
        self.watch: Callable[[Mapping[str, Any]], None] | None = None
        self._handles: list[Any] = []
        self._register()
        _attached.add(self)

    def _register(self) -> None:
        for door in {id(m): m for m in (self.model, self.backbone)}.values():
            self._handles.append(door.register_forward_pre_hook(self._open, with_kwargs=True, prepend=True))
            self._handles.append(door.register_forward_hook(self._close, always_call=True))
        for module, mixer in self.mixers.items():
            self._handles.append(module.register_forward_pre_hook(self._enter_mixer, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave_mixer, always_call=True))
            for convolution in dispatch.inline_convolutions(module, mixer):
                self._handles.append(convolution.register_forward_hook(self._isolate_convolution))

    def detach(self) -> None:
        """Takes every hook and checkpoint wrapper back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        release_checkpoints(self.checkpointed)
        vars(self.model).pop(_ATTRIBUTE, None)

    @torch.compiler.disable
    def _open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        args, kwargs = _by_name(module, args, kwargs)
        rows, length = _shape(args, kwargs)
        above = current()
        inherited = above is not None and above.owner is self and module is not above.door
        if inherited and not any(kwargs.get(name) is not None for name in _CONSUMED):
            segments, agree = above.segments, True
            if segments is not None and (rows, length) != (above.rows, above.length):
                raise BoundaryError(
                    f"The model turned a packed batch of [{above.rows}, {above.length}] tokens into [{rows}, {length}] "
                    "before its layers. Tokens added by the model (prompt tuning) cannot be combined with packing."
                )
        else:
            segments, agree = find_documents(kwargs, rows, length)
            if segments is None and self.watch is not None:
                self.watch(kwargs)
        enter(Scope(self, module, segments, rows, length))
        bind_checkpoints(self.checkpointed)
        kwargs = {name: value for name, value in kwargs.items() if name not in _CONSUMED}
        if segments is not None:
            _isolate(module, kwargs, segments, agree)
            if module is self.backbone:
                _show_text_plane(kwargs, segments)
            if module is self.backbone and _uses_flash_attention(module):
                _expand_for_flash_attention(kwargs, segments)
        return args, kwargs

    @torch.compiler.disable
    def _close(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        scope = leave(module)
        if scope is None or scope.segments is None or module is not self.backbone or output is None:
            return
        self.packed_forwards += 1
        if not self.checked:
            check_handshake(scope, self.mixers)
            self.checked = True

    @torch.compiler.disable
    def _enter_mixer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = current()
        if scope is None or scope.owner is not self:
            return None
        scope.mixer = module
        scope.used.setdefault(module, set())
        if scope.segments is None or SEQ_IDX not in self.mixers[module].ops:
            return None
        scope.record(SEQ_IDX)
        return args, {**kwargs, "seq_idx": segments_to_seq_idx(scope.segments, _device(args, kwargs))}

    @torch.compiler.disable
    def _isolate_convolution(self, module: nn.Conv1d, args: tuple[Any, ...], output: torch.Tensor) -> Any:
        """The output of a convolution that its mixer calls in line, anew with boundaries; padding stays at the end."""
        scope = current()
        if scope is None or scope.owner is not self or scope.segments is None:
            return None
        scope.record(CONV)
        isolated = causal_conv1d(args[0], module.weight.squeeze(1), module.bias, scope.segments)
        return nn.functional.pad(isolated, (0, output.shape[-1] - isolated.shape[-1]))

    @torch.compiler.disable
    def _leave_mixer(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        scope = current()
        if scope is not None and scope.mixer is module:
            scope.mixer = None


def attach(model: nn.Module) -> Runtime:
    """Attaches the runtime to `model` and wraps the dispatch points of its mixers; asked twice, it does it once."""
    runtime = vars(model).get(_ATTRIBUTE)
    if runtime is None:
        runtime = Runtime(model)
        dispatch.wrap(dispatch.points_of(runtime.mixers))
        # Past nn.Module.__setattr__: the runtime holds modules, and must not be taken for a submodule.
        object.__setattr__(model, _ATTRIBUTE, runtime)
    return runtime


def detach_all() -> None:
    """Takes the runtime off every model and unwraps every dispatch point."""
    for runtime in list(_attached):
        runtime.detach()
    dispatch.unwrap_all()


def runtime_of(model: nn.Module) -> Runtime | None:
    """The runtime attached to `model`, or `None`."""
    return vars(model).get(_ATTRIBUTE)


def _isolate(module: nn.Module, kwargs: dict[str, Any], segments: Segments, positions_agree: bool) -> None:
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
        kwargs["position_ids"] = segments_to_positions(segments, _device((), kwargs))


def _show_text_plane(kwargs: dict[str, Any], segments: Segments) -> None:
    """Puts the text positions in front of the three planes of multimodal rope.

    Decoders with multimodal rope build the attention mask from a fourth plane, and without it from no positions at
    all: attention would not see the documents.
    """
    positions = kwargs.get("position_ids")
    if positions is not None and positions.ndim == 3 and positions.shape[0] == 3:
        text = segments_to_positions(segments, positions.device).to(positions.dtype)
        kwargs["position_ids"] = torch.cat([text[None].expand(1, *positions.shape[1:]), positions])


def _uses_flash_attention(module: nn.Module) -> bool:
    return "flash" in str(getattr(module.config, "_attn_implementation", None))


def _expand_for_flash_attention(kwargs: dict[str, Any], segments: Segments) -> None:
    """The boundaries as variable-length attention takes them, so that no layer has to read them off the device."""
    kwargs["cu_seq_lens_q"] = kwargs["cu_seq_lens_k"] = segments.cu_seqlens(_device((), kwargs))
    kwargs["max_length_q"] = kwargs["max_length_k"] = segments.longest


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    return next(value.device for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))


def _by_name(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
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


def _shape(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    for name in ("input_ids", "inputs_embeds"):
        if isinstance(kwargs.get(name), torch.Tensor):
            return kwargs[name].shape[0], kwargs[name].shape[1]
    if args and isinstance(args[0], torch.Tensor):
        return args[0].shape[0], args[0].shape[1]
    raise BoundaryError(
        "A model with packing attached was called without `input_ids` or `inputs_embeds`; the documents of the "
        "row cannot be found. Pass one of them by keyword."
    )
