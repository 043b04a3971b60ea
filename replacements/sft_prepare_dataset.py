"""The rewrite of `SFTTrainer._prepare_dataset` for those who ask for unsloth_zoo's: the zoo's function takes its place.

It is looked up at the call, so that TRL and the zoo may be imported in either order, and TRL's own runs while the zoo
is not imported.
"""

from patcher.rewriting import Edit, Rewrite

REWRITE = Rewrite(
    name="zoo-in-trl",
    package="trl",
    target="trl.trainer.sft_trainer:SFTTrainer._prepare_dataset",
    since="0.22.0",
    edits=(
        Edit(
            name="hand over to the zoo",
            action="prepend",
            text=(
                "if __patcher__.takes_over():\n"
                "    return __patcher__.prepare_dataset("
                "self, dataset, processing_class, args, packing, formatting_func, dataset_name)"
            ),
        ),
    ),
    calls={
        "takes_over": "replacements.packing.zoo:takes_over",
        "prepare_dataset": "replacements.packing.zoo:prepare_dataset",
    },
    unless=("unsloth",),  # it builds a trainer of its own, with the zoo's function in it
    option="zoo",
)
