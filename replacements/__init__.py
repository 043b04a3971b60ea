"""What gets installed: one module per rewritten upstream function, and the runtime they call.

`REWRITES` is the table of rewrites, loaded when it is first asked for: the ops in `kernels` can be imported without the
rewrite engine.
"""

import sys
from collections.abc import Collection
from importlib import import_module

#: A new upstream function is a new module here and a row in this table.
_MODULES = ("sft_trainer_init", "sft_collator_torch_call", "zoo_prepare_dataset", "sft_prepare_dataset")


def __getattr__(name: str) -> object:
    if name != "REWRITES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return tuple(import_module(f"{__name__}.{module}").REWRITE for module in _MODULES)


def install(options: Collection[str] = ()) -> None:
    """Has the rewrites made, at once or when their modules are imported, and joins Unsloth's trainer.

    Args:
        options: names of the options that are asked for, as in `Rewrite.option`.

    Raises:
        PatchError: a required rewrite of an imported module cannot be made. The process is as it was.
    """
    from patcher import _session
    from replacements import REWRITES, unsloth_trainer

    _session.install(rewrite for rewrite in REWRITES if not rewrite.option or rewrite.option in options)
    unsloth_trainer.accompany()


def uninstall() -> None:
    """Takes everything back: rewrites, what waits for an import, and the hooks on models."""
    from patcher import _session
    from replacements import unsloth_trainer

    unsloth_trainer.leave()
    _session.uninstall()
    runtime = sys.modules.get("replacements.packing.runtime")  # not loaded: nothing is attached
    if runtime is not None:
        runtime.detach_all()
