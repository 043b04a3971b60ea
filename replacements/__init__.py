"""What gets installed: one module per rewritten upstream function, and the runtime they call.

`REWRITES` is the table of rewrites, loaded when it is first asked for: the runtime in `packing` and the ops in
`kernels` can be imported without the rewrite engine.
"""

from importlib import import_module

#: A new upstream function is a new module here and a row in this table.
_MODULES = ("sft_trainer_init", "sft_collator_torch_call", "zoo_prepare_dataset", "sft_prepare_dataset")


def __getattr__(name: str) -> object:
    if name != "REWRITES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(import_module(f"{__name__}.{module}").REWRITE for module in _MODULES)
