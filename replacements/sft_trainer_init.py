"""The rewrite of `SFTTrainer.__init__`: the guard chooses before packing is read, the runtime joins at the end."""

from patcher.rewriting import Anchor, Edit, Rewrite

REWRITE = Rewrite(
    name="sft-trainer",
    package="trl",
    target="trl.trainer.sft_trainer:SFTTrainer.__init__",
    since="0.22.0",
    edits=(
        # The last moment before a model given by name is downloaded and built.
        Edit(
            name="foresee the verdict",
            anchors=(Anchor("if isinstance(model, str): ...", level="body"),),
            action="before",
            text=(
                "__patcher__.foresee(model=model, args=args, data_collator=data_collator, "
                "train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=processing_class, "
                "peft_config=peft_config)"
            ),
            required=False,
            lost="an early verdict on a model given by name; it is judged once its weights are loaded",
        ),
        # The model is a module here even when its name was passed, PEFT has not wrapped it yet, and everything that
        # reads `packing` comes later.
        Edit(
            name="choose packing",
            anchors=(Anchor("if processing_class is None: ...", level="body"),),
            action="before",
            text=(
                "args = __patcher__.choose(self, model=model, args=args, data_collator=data_collator, "
                "train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=processing_class, "
                "peft_config=peft_config)"
            ),
        ),
        Edit(name="attach the runtime", anchors=(), action="append", text="__patcher__.prepare(self)"),
    ),
    calls={
        "foresee": "replacements.packing.strings:foresee",
        "choose": "replacements.packing.guard:choose",
        "prepare": "replacements.packing.trainer:prepare",
    },
    unless=("unsloth",),  # it makes a trainer of its own from this one's text: unsloth_trainer.py
)
