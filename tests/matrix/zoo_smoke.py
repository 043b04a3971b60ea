"""One zoo lane: releases of unsloth_zoo prepare datasets for one TRL, as published and rewritten. Prints JSON.

The reference is the published function itself, without packing and without a limit: the documents, whole. Packed rows
must hold them, token for token, wherever the strategy loses none. Run as a program, by tools/matrix_zoo.py.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import json
import sys
import tempfile
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

LIMIT = 16  # tokens in a row; the documents have from 5 to 61
NO_LIMIT = 100_000
ITEM = "sft_prepare_dataset"


def load(folder: Path) -> types.ModuleType:
    """Imports `unsloth_zoo.dataset_utils` alone: the package's own module wants Unsloth and an accelerator."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "unsloth_zoo"]:
        del sys.modules[name]
    package = types.ModuleType("unsloth_zoo")
    package.__path__ = [str(folder / "unsloth_zoo")]
    sys.modules["unsloth_zoo"] = package
    module = importlib.import_module("unsloth_zoo.dataset_utils")
    registry = types.ModuleType("unsloth_zoo.rl_replacements")  # the real one wants an accelerator too
    registry.RL_REPLACEMENTS = {ITEM: module.sft_prepare_dataset}
    sys.modules[registry.__name__] = registry
    return module


def tokenizer():
    """A tokenizer of words, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{i}": i for i in range(128)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="w0", eos_token="w2")
    made.chat_template = "{% for m in messages %}w5 {{ m['content'] }} w6 {% endfor %}"
    return made


def words(count: int, start: int) -> str:
    """That many words of the tokenizer."""
    return " ".join(f"w{3 + (start + 7 * i) % 120}" for i in range(count))


def data() -> dict[str, tuple]:
    """For each kind of data the rows and the formatting function."""
    lengths = (5, 61, 16, 33, 17)
    text = [{"text": words(n, i)} for i, n in enumerate(lengths)]
    pairs = [{"prompt": words(n // 2, i) + " ", "completion": words(n - n // 2, i + 50)} for i, n in enumerate(lengths)]
    messages = [
        {"messages": [{"role": r, "content": words(n // 2, i)} for r in ("user", "assistant")]}
        for i, n in enumerate(lengths)
    ]

    def formatted(example):
        chats = example["messages"]
        chats = chats if isinstance(chats[0], list) else [chats]
        return [" ".join(message["content"] for message in chat) for chat in chats]

    return {
        "text": (text, None),
        "prompt-completion": (pairs, None),
        "messages": (messages, None),
        "messages, formatted": (messages, formatted),
    }


def prepared(function, rows, formatting, packing: bool, **arguments) -> dict[str, list[list[int]]]:
    """The columns that a dataset preparation gives."""
    from datasets import Dataset
    from trl import SFTConfig

    settings = {"output_dir": tempfile.mkdtemp(), "report_to": [], "use_cpu": True, "bf16": False, "max_length": LIMIT}
    args = SFTConfig(**settings | {"dataset_num_proc": 1} | arguments)
    made = function(types.SimpleNamespace(), Dataset.from_list(rows), tokenizer(), args, packing, formatting, "train")
    return made.to_dict()


def joined(rows: list[list[int]]) -> list[int]:
    """The tokens of all rows, one after the other."""
    return list(itertools.chain.from_iterable(rows))


def examine(folder: Path) -> dict:
    """What one release does, published and rewritten: for each kind of data what is right, or why it was not run."""
    import trl

    import patcher

    patcher.uninstall()
    module = load(folder)
    published = module.sft_prepare_dataset
    module.pack_dataset = trl.pack_dataset  # published, it only packs where somebody binds the name, as Unsloth does
    stock = {kind: answers(published, *row) for kind, row in data().items()}
    del module.pack_dataset
    patcher.install(zoo=True)
    rewritten = module.sft_prepare_dataset
    report = {kind: compare(answers(rewritten, *row), stock[kind]) for kind, row in data().items()}
    registry = sys.modules["unsloth_zoo.rl_replacements"].RL_REPLACEMENTS
    report["places"] = {
        "rewritten": rewritten is not published and registry[ITEM] is rewritten,
        "trainer": through_trainer(),
        "again": (patcher.install(zoo=True), module.sft_prepare_dataset is rewritten)[1],
        "taken back": (patcher.uninstall(), module.sft_prepare_dataset is published is registry[ITEM])[1],
    }
    return report


def answers(function, rows, formatting) -> dict | str:
    """The columns under every way to pack, or the error of a release that does not know this kind of data."""
    try:
        whole = prepared(function, rows, formatting, packing=False, max_length=NO_LIMIT)
        cut = prepared(function, rows, formatting, packing=False)
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    ways = {name: {"packing_strategy": name} for name in strategies()}
    packed = {name: prepared(function, rows, formatting, packing=True, **way) for name, way in ways.items()}
    return {"whole": whole, "cut": cut, **packed}


def strategies() -> list[str]:
    """The strategies that this TRL's `pack_dataset` knows."""
    import inspect

    from trl import data_utils

    text = inspect.getsource(data_utils.pack_dataset)
    return [name for name in ("wrapped", "bfd", "bfd_split") if f'"{name}"' in text]


def compare(got: dict | str, stock: dict | str) -> dict | str:
    """What holds of the rewritten function, given the published one's answers."""
    if isinstance(stock, str) or isinstance(got, str):
        return stock if got == stock else f"published: {stock}, rewritten: {got}"
    whole = joined(stock["whole"]["input_ids"])
    found = {
        "unpacked as before": got["cut"] == stock["cut"] and got["whole"] == stock["whole"],
        "bfd as before": got["bfd"] == stock["bfd"],
        "wrapped keeps every token": joined(got["wrapped"]["input_ids"]) == whole,
        "other columns too": all(
            joined(values) == joined(stock["whole"][name])
            for name, values in got["wrapped"].items()
            if name != "seq_lengths"
        ),
        "published lost tokens": len(joined(stock["wrapped"]["input_ids"])) < len(whole),
    }
    if "bfd_split" in got:
        found["bfd_split keeps every token"] = sorted(joined(got["bfd_split"]["input_ids"])) == sorted(whole)
    return found


def through_trainer() -> bool:
    """Whether a trainer of TRL's own prepares its data with the zoo's function."""
    from datasets import Dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    shape = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_hidden_layers=1, **shape))
    rows, _ = data()["text"]
    settings = {
        "output_dir": tempfile.mkdtemp(),
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "dataset_num_proc": 1,
    }
    args = SFTConfig(**settings, max_length=LIMIT, packing=True, packing_strategy="wrapped")
    trainer = SFTTrainer(model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer())
    whole = [token for row in rows for token in tokenizer()(row["text"])["input_ids"]]
    return joined(trainer.train_dataset["input_ids"]) == whole


def main() -> None:
    """Examines the releases whose folders are named, as VERSION=FOLDER."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="+")
    releases = [release.split("=", 1) for release in parser.parse_args().releases]
    with contextlib.redirect_stdout(io.StringIO()):
        reports = {version: examine(Path(folder)) for version, folder in releases}
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
