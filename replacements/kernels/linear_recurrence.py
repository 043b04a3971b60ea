"""First-order linear recurrences, solved in place along the first dimension."""

from __future__ import annotations

import torch

# Elements in one row from which going row by row beats the tree: below it a row costs its launch, above it the
# tree's two further passes over memory cost more than the launches it saves.
_SERIAL_ROW_CPU = 1 << 12
_SERIAL_ROW_ACCELERATOR = 1 << 22


def scan_(decay: torch.Tensor, state: torch.Tensor) -> None:
    """Solve ``state[t] += decay[t - 1] * state[t - 1]`` for t = 1 ... n - 1.

    ``state[0]`` is the initial state. A decay of zero begins a new sequence: nothing before it has any influence.

    Large rows are processed one by one, small ones as a tree of pairs (Blelloch, "Prefix sums and their applications",
    1990): three launches for every doubling of the length, in about three passes over the state.

    Args:
        decay: ``[n - 1, ...]``, broadcastable to the rows of ``state``.
        state: ``[n, ...]``, overwritten.
    """
    n = len(state)
    if _row_by_row(state):
        rows, decays = state.unbind(0), decay.unbind(0)
        for t in range(1, n):
            rows[t].addcmul_(decays[t - 1], rows[t - 1])
    elif n > 1:
        odd = state[1::2]
        odd.addcmul_(decay[0::2], state[0 : n - 1 : 2])
        scan_(decay[2::2] * decay[1 : n - 2 : 2], odd)
        state[2::2].addcmul_(decay[1::2], state[1 : n - 1 : 2])


def reverse_scan_(decay: torch.Tensor, state: torch.Tensor) -> None:
    """Solve ``state[t] += decay[t] * state[t + 1]`` for t = n - 2 ... 0, the adjoint of `scan_`.

    Args:
        decay: ``[n - 1, ...]``, broadcastable to the rows of ``state``.
        state: ``[n, ...]``, overwritten; ``state[n - 1]`` is the value at the end.
    """
    n = len(state)
    if _row_by_row(state):
        rows, decays = state.unbind(0), decay.unbind(0)
        for t in range(n - 2, -1, -1):
            rows[t].addcmul_(decays[t], rows[t + 1])
    elif n > 1:
        # The tree is the mirror image: counted from the end, `first` holds the odd rows and `second` the even ones.
        first, second = n % 2, 1 - n % 2
        odd = state[first : n - 1 : 2]
        odd.addcmul_(decay[first::2], state[first + 1 :: 2])
        scan_input = decay[first : n - 3 : 2] * decay[first + 1 :: 2]
        reverse_scan_(scan_input, odd)
        state[second : n - 2 : 2].addcmul_(decay[second : n - 2 : 2], state[second + 1 : n - 1 : 2])


def _row_by_row(state: torch.Tensor) -> bool:
    limit = _SERIAL_ROW_CPU if state.device.type == "cpu" else _SERIAL_ROW_ACCELERATOR
    return len(state) > 0 and state[0].numel() >= limit
