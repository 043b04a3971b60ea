"""The check that what was reported is what ran: every mixer used the boundaries in each of its ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from replacements.packing.current import Scope
    from replacements.packing.families import Mixer


class HandshakeError(RuntimeError):
    """A packed forward ran and some mixer did not use the boundaries."""


def check_handshake(scope: Scope, mixers: dict[nn.Module, Mixer]) -> None:
    """Raises if a mixer ran a packed forward without the boundaries in one of its ops.

    Args:
        scope: The scope of the forward that just ended.
        mixers: The model's mixers.

    Raises:
        HandshakeError: Names each mixer and the ops that did not use the boundaries.
    """
    missing = {}
    for module, mixer in mixers.items():
        used = scope.used.get(module, set() if scope.strayed else None)  # it may have run past its hooks
        if used is not None and not used.issuperset(mixer.ops):
            missing[mixer.name] = [op for op in mixer.ops if op not in used]
    if mixers and not scope.used:
        missing = {mixer.name: list(mixer.ops) for mixer in mixers.values()}
    if missing:
        raise HandshakeError(_message(missing))


def _message(missing: dict[str, list[str]]) -> str:
    names = [f"{name} ({', '.join(ops)})" for name, ops in missing.items()]
    shown = "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if len(names) > 4 else "")
    return (
        f"A packed row ran, but these mixers did not use its document boundaries: {shown}. Documents would leak into "
        "each other, so the step was stopped before backward. Something replaced the kernels or the forward of these "
        "layers after the trainer was built (another patch, a kernel library, a compiled copy). Remove it, or train "
        "with `packing=False, padding_free=False`."
    )
