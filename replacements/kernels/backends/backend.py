"""What a backend is, and how its kernel is found."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..segments import Segments

#: Runs a kernel: the kernel, the operation's arguments by name, the documents, and what only kernels ask for.
Call = Callable[[Callable[..., Any], Mapping[str, Any], Segments, Mapping[str, Any]], torch.Tensor]


class NotInstalled(ImportError):
    """The package of a backend is not there."""


@dataclass(frozen=True)
class Backend:
    """One kernel of one package.

    Attributes:
        name: Package and kernel, as the user knows them.
        op: The operation it computes, a key of `table.OPS`.
        places: Where releases of the package keep the kernel, ``"module:attribute"``, the newest first.
        boundary: The argument through which it takes boundaries.
        call: Brings arguments into the layout the kernel wants, runs it, and brings the result back.
    """

    name: str
    op: str
    places: tuple[str, ...]
    boundary: str
    call: Call

    @property
    def package(self) -> str:
        """Top-level package, as it is imported."""
        return self.places[0].partition(".")[0].partition(":")[0]

    @functools.cached_property
    def kernel(self) -> Callable[..., Any]:
        """The kernel.

        Raises:
            NotInstalled: The package is not there.
            ImportError: It is, and cannot be imported or does not have the kernel.
            TypeError: The kernel takes no boundaries in this release.
        """
        if importlib.util.find_spec(self.package) is None:
            raise NotInstalled(f"{self.package} is not installed")
        kernel = self._find()
        if self.boundary not in parameters(kernel):
            raise TypeError(f"it takes no `{self.boundary}` in the installed release of {self.package}")
        return kernel

    def _find(self) -> Callable[..., Any]:
        missing = []
        for place in self.places:
            module, _, attribute = place.partition(":")
            try:
                found = getattr(importlib.import_module(module), attribute, None)
            except ModuleNotFoundError as error:
                if error.name is None or not module.startswith(error.name):
                    raise  # something that the package needs
                found = None
            if callable(found):
                return found
            missing.append(place)
        raise ImportError(f"none of {', '.join(missing)} is in the installed release of {self.package}")


@functools.cache
def parameters(kernel: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters of a kernel."""
    return frozenset(inspect.signature(kernel).parameters)


def accepted(kernel: Callable[..., Any], **optional: Any) -> dict[str, Any]:
    """Those of the arguments that a kernel names."""
    return {name: value for name, value in optional.items() if name in parameters(kernel)}


def one_row(x: torch.Tensor) -> torch.Tensor:
    """``[B, T, ...]`` as ``[1, B * T, ...]``, the last axis contiguous; a view where possible."""
    x = x if x.shape[0] == 1 else x.reshape(1, -1, *x.shape[2:])
    return x if x.stride(-1) == 1 else x.contiguous()


def seq_idx_by_row(segments: Segments, device: torch.device) -> torch.Tensor:
    """Number of every token's document in its batch row, contiguous int32 ``[B, T]``; built once per device."""

    def build() -> torch.Tensor:
        flat = segments.seq_idx(device).view(segments.rows, -1)
        return (flat - flat[:, :1]).contiguous()

    return segments.cached(("seq_idx_by_row", device), build)
