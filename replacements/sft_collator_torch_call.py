"""The rewrite of `DataCollatorForLanguageModeling.torch_call`: the finished batch gets its boundaries."""

from patcher.rewriting import Anchor, Edit, Rewrite

REWRITE = Rewrite(
    name="sft-collator",
    package="trl",
    target="trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call",
    since="0.22.0",
    edits=(
        # TRL slices by the lengths before it returns: wrong ones end in an IndexError that names nothing.
        Edit(name="check the lengths", action="prepend", text="__patcher__.check_lengths(self, examples)"),
        Edit(
            name="complete the batch",
            anchors=(Anchor("return $OUTPUT", level="body", only=True),),
            action="replace",
            text="return __patcher__.complete(self, examples, $OUTPUT)",
        ),
    ),
    calls={
        "check_lengths": "replacements.packing.collator:check_lengths",
        "complete": "replacements.packing.collator:complete",
    },
)
