"""The rewrite of unsloth_zoo's `sft_prepare_dataset`: packing that keeps every token is given every token.

All its ways to cut a document to `max_length` ask one flag, so the flag is what changes. It packs with a name that its
own module does not define; that name is bound first, and the call passes what the installed `pack_dataset` takes.
"""

from patcher.rewriting import Anchor, Edit, Rewrite

REWRITE = Rewrite(
    name="zoo-dataset",
    package="unsloth_zoo",
    target="unsloth_zoo.dataset_utils:sft_prepare_dataset",
    since="2025.8.6",
    edits=(
        # The function asks whether the name exists before it packs, and gives packing up if not.
        Edit(name="bind the packer", action="prepend", text="pack_dataset = __patcher__.pack"),
        Edit(
            name="truncation flag",
            anchors=(Anchor("$do_truncation = $max_seq_length != 0", level="body", only=True),),
            action="after",
            text="$do_truncation = __patcher__.truncates($do_truncation, $max_seq_length, args, packing)",
        ),
        Edit(
            name="pack call",
            anchors=(Anchor("$dataset = pack_dataset($...arguments)"),),
            action="replace",
            text="$dataset = __patcher__.pack($...arguments)",
        ),
    ),
    calls={"pack": "replacements.packing.zoo:pack", "truncates": "replacements.packing.zoo:truncates"},
    aliases=("unsloth_zoo.rl_replacements:RL_REPLACEMENTS['sft_prepare_dataset']",),
    unless=("unsloth",),  # it edits the text of this function itself
    option="zoo",
)
