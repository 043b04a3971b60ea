"""The rewrite of `DataCollatorForLanguageModeling.torch_call`: the finished batch gets its boundaries."""

from patcher._anchors import Anchor
from patcher._rewrite import Edit, Rewrite

REWRITE = Rewrite(
    name="sft-collator",
    package="trl",
    target="trl.trainer.sft_trainer:DataCollatorForLanguageModeling.torch_call",
    edits=(
        Edit(
            name="complete the batch",
            anchors=(Anchor("return $OUTPUT", level="body", only=True),),
            action="replace",
            text="return __patcher__.complete(self, examples, $OUTPUT)",
        ),
    ),
    calls={"complete": "replacements.packing.collator:complete"},
)
