"""Attaches the boundaries to a model: two doors, the mixers between them, and the layers that are recomputed.

The outer door is the module the trainer calls. It takes `seq_idx` out of the batch, because many models drop keyword
arguments on the way down. The inner door is the backbone, the module that holds the decoder layers; losses that skip
the outer forward call it directly. Whichever is entered first opens a scope, and each closes what it opened.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from replacements.packing import adapters, dispatch
from replacements.packing.arguments import (
    by_name,
    device_of,
    expand_for_flash_attention,
    isolate,
    shape_of,
    show_text_plane,
    uses_flash_attention,
)
from replacements.packing.boundaries import CACHES, EXPLICIT, BoundaryError, find_documents, segments_to_seq_idx
from replacements.packing.current import Scope, current, enter, leave
from replacements.packing.families import CONV, SEQ_IDX
from replacements.packing.handshake import check_handshake
from replacements.packing.recompute import bind_checkpoints, release_checkpoints
from replacements.packing.structure import Anatomy
from replacements.packing.tripwire import allow_documents, refuse_documents

_ATTRIBUTE = "_patcher_runtime"
_attached: weakref.WeakSet[Runtime] = weakref.WeakSet()
_TAKEN_BACK = (
    "A row of several documents reached a model whose trainer was built for packing, and `patcher.uninstall()` took "
    "back what kept its documents apart. Call `patcher.install()` and build the trainer again, or build it with "
    "`packing=False, padding_free=False`."
)
#: What travels in a batch for the doors alone; no model below them needs it.
_CONSUMED = ("seq_idx", "packed_seq_lengths", "cu_seqlens")


class Runtime:
    """The hooks of one attached model.

    Attributes:
        model: The module the trainer calls.
        backbone: The module that holds the decoder layers.
        mixers: Every recurrent mixer.
        packed_forwards: How many forwards held more than one document.
        checks: Whether every packed forward is held to the handshake; off only to look at a leak.
        watch: Called with the arguments that the outermost door is given of rows of single documents; may raise. Its
            `trainer` is a weak reference to the trainer that packs.
    """

    def __init__(self, model: nn.Module):
        anatomy = Anatomy.of(model)
        self.model = model
        self.backbone = anatomy.backbone
        self.mixers = anatomy.mixers
        self.packed_forwards = 0
        self.checks = True
        self.watch: Any = None
        self._handles: list[Any] = []
        self._wrapped = False
        self._register()
        _attached.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or one that was saved: its hooks came along, the dispatch points of this process may not have."""
        vars(self).update(state, _wrapped=False)
        _attached.add(self)

    def reach_kernels(self) -> None:
        """Wraps the dispatch points of the mixers, the first time it is asked."""
        if not self._wrapped:
            dispatch.wrap(dispatch.points_of(self.mixers))
            self._wrapped = True

    def hold(self, handles: list[Any]) -> None:
        """Keeps the handles of further hooks, which go when the runtime does."""
        self._handles.extend(handles)

    def _register(self) -> None:
        for door in {id(m): m for m in (self.model, self.backbone)}.values():
            self._handles.append(door.register_forward_pre_hook(self._open, with_kwargs=True, prepend=True))
            self._handles.append(door.register_forward_hook(self._close, always_call=True))
        for module, mixer in self.mixers.items():
            self._handles.append(module.register_forward_pre_hook(self._enter_mixer, with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._leave_mixer, always_call=True))
            for convolution in dispatch.inline_convolutions(module, mixer):
                self._handles.append(convolution.register_forward_hook(self._isolate_convolution))

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """The model without these hooks, for a `with` block; they are put back in their order."""
        ours = {handle.id for handle in self._handles}
        tables = [table for handle in self._handles if (table := handle.hooks_dict_ref()) is not None]
        kept = [(table, dict(table)) for table in {id(table): table for table in tables}.values()]
        for table, hooks in kept:
            for key in ours & hooks.keys():
                del table[key]
        try:
            yield
        finally:
            for table, hooks in kept:
                table.clear()
                table.update(hooks)

    def detach(self) -> None:
        """Takes every hook and checkpoint wrapper back."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        release_checkpoints(self.model.modules())
        vars(self.model).pop(_ATTRIBUTE, None)

    @torch.compiler.disable
    def _open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        if getattr(module, "_is_replica", False):
            raise BoundaryError(
                "Packed rows cannot be trained under `nn.DataParallel`, which runs copies of the model in threads. "
                "Launch with `torchrun` or `accelerate launch`, or make one GPU visible (CUDA_VISIBLE_DEVICES)."
            )
        args, kwargs = by_name(module, args, kwargs)
        rows, length = shape_of(args, kwargs)
        segments, agree = (None, True) if self._continues(kwargs) else self._documents(module, kwargs, rows, length)
        self.reach_kernels()
        if torch.is_grad_enabled() and not self._inside():  # else nothing recomputes, or the outer door has done it
            bind_checkpoints(self.model)
        enter(Scope(self, module, segments, rows, length))
        kwargs = {name: value for name, value in kwargs.items() if name not in _CONSUMED}
        if segments is not None:
            isolate(module, kwargs, segments, agree)
            if module is self.backbone:
                show_text_plane(kwargs, segments)
                if uses_flash_attention(module):
                    expand_for_flash_attention(kwargs, segments)
        return args, kwargs

    def _continues(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether a call goes on from a cache, as generation does: left padding makes its positions look packed."""
        if torch.is_grad_enabled() or all(kwargs.get(name) is None for name in CACHES):
            return False
        # Continuous batching of attention alone says where its requests start, and keeps them apart in the cache.
        return not self.mixers or all(kwargs.get(name) is None for name in EXPLICIT)

    def _inside(self) -> bool:
        """Whether a forward of this model is running already."""
        above = current()
        return above is not None and above.owner is self

    def _documents(self, door: nn.Module, kwargs: dict[str, Any], rows: int, length: int) -> Any:
        """The documents of a batch at a door: those of the door above, if it found any, else what is said here."""
        above = current()
        inherits = above is not None and above.owner is self and door is not above.door and above.segments is not None
        if not inherits or any(kwargs.get(name) is not None for name in _CONSUMED):
            segments, agree = find_documents(kwargs, rows, length)
            if segments is None and self.watch is not None and not self._inside():
                self.watch(kwargs)
            return segments, agree
        if (rows, length) != (above.rows, above.length):
            raise BoundaryError(
                f"The model turned a packed batch of [{above.rows}, {above.length}] tokens into [{rows}, {length}] "
                "before its layers. Tokens added by the model (prompt tuning) cannot be combined with packing."
            )
        return above.segments, True

    @torch.compiler.disable
    def _close(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        scope = leave(module)
        if scope is None or scope.segments is None or module is not self.backbone or output is None:
            return
        self.packed_forwards += 1
        if self.checks:
            check_handshake(scope, self.mixers)

    @torch.compiler.disable
    def _enter_mixer(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = current()
        if scope is None:
            self._refuse_lost_scope(module)
        if scope is None or scope.owner is not self:
            return None
        scope.mixer = module
        scope.used.setdefault(module, set())
        if scope.segments is None or SEQ_IDX not in self.mixers[module].ops:
            return None
        scope.record(SEQ_IDX)
        return args, {**kwargs, "seq_idx": segments_to_seq_idx(scope.segments, device_of(args, kwargs))}

    def _refuse_lost_scope(self, module: nn.Module) -> None:
        """A recomputation that carries no scope, after packed rows, would silently join their documents."""
        if self.packed_forwards and torch._C._current_graph_task_id() != -1:
            raise BoundaryError(
                f"{self.mixers[module].name} is recomputed during backward by a checkpointing function that cannot be "
                "given the document boundaries of its forward. Use transformers' own (`gradient_checkpointing=True`)."
            )

    @torch.compiler.disable
    def _isolate_convolution(self, module: nn.Conv1d, args: tuple[Any, ...], output: torch.Tensor) -> Any:
        """The output of a convolution that its mixer calls in line, anew with boundaries; padding stays at the end."""
        scope = current()
        if scope is None or scope.owner is not self or scope.segments is None:
            return None
        scope.record(CONV)
        isolated = adapters.causal_conv1d(scope.segments, args[0], module.weight.squeeze(1), module.bias)
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
        for inner in filter(None, map(runtime_of, model.modules())):
            inner.detach()  # of a trainer before the model was wrapped (PEFT): both would open and close one door
        allow_documents(model)
        runtime = Runtime(model)
        runtime.reach_kernels()
        # Past nn.Module.__setattr__: the runtime holds modules, and must not be taken for a submodule.
        object.__setattr__(model, _ATTRIBUTE, runtime)
    return runtime


def detach_all() -> None:
    """Takes the runtime off every model and unwraps every dispatch point.

    A trainer that lives on goes on packing: its recurrent model refuses the rows from here on.
    """
    for runtime in list(_attached):
        runtime.detach()
        if runtime.mixers and runtime.watch is not None and runtime.watch.trainer() is not None:
            refuse_documents(runtime.model, _TAKEN_BACK)
    dispatch.unwrap_all()


def runtime_of(model: nn.Module) -> Runtime | None:
    """The runtime attached to `model`, or `None`."""
    return vars(model).get(_ATTRIBUTE)
