"""Accelerated kernels that take document boundaries, in front of the torch operations.

Each operation has an ordered list of backends (`table.py`). A call runs the first that is installed, takes the
boundaries, and has agreed with the torch operation in a small forward and backward on the same device, with the same
dtypes and widths (`selftest.py`); where there is none it runs the torch operation. How each provider wants its tensors
is in the module called like it.

On CPU tensors the torch operations run: none of the kernels has a useful CPU form.

The kernels that transformers itself may fetch from the hub are not among them: where they are bound to a layer they
are bound inside the function that the runtime wraps, so that a packed row never reaches them.
"""

from .registry import State, accelerated, reset, run, self_test, states

__all__ = ["State", "accelerated", "reset", "run", "self_test", "states"]
