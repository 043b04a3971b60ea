"""Which class is rewritten under Unsloth, told on a stand-in that copies and wraps TRL's trainer as Unsloth does."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

#: Unsloth in short: its zoo is imported before it reads TRL, it writes a module, runs it and binds what is in it.
UNSLOTH = """
import functools, inspect, sys, types
import unsloth_zoo
import trl.trainer.sft_trainer as sft

def generate(folder):
    published, init = inspect.getsource(sft.SFTTrainer), inspect.getsource(sft.SFTTrainer.__init__)
    edited = init.replace("if peft_config is not None:", "if False:") + "        self.edited_by_unsloth = True\\n"
    source = "from trl.trainer.sft_trainer import *\\nimport trl.trainer.sft_trainer as _sft\\n"
    source += "globals().update({k: v for k, v in vars(_sft).items() if not k.startswith('__')})\\n"
    source += published.replace(init, edited).replace("class SFTTrainer", "class _UnslothSFTTrainer")
    source += "class UnslothSFTTrainer(_UnslothSFTTrainer):\\n"
    source += "    def __init__(self, *a, **k):\\n        super().__init__(*a, **k)\\n"
    path = folder + "/UnslothSFTTrainer.py"
    open(path, "w").write(source)
    module = types.ModuleType("UnslothSFTTrainer")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(compile(source, path, "exec"), vars(module))
    sft.SFTTrainer = module.UnslothSFTTrainer
    return "edited_by_unsloth" in source

def wrap():
    inner = sft.SFTTrainer.__init__
    @functools.wraps(inner)
    def new_init(self, *a, **k):
        return inner(self, *a, **k)
    sft.SFTTrainer.__init__ = new_init
"""

#: What the guard is told of.
TOLD = {"model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class", "peft_config"}

PROGRAM = """
import json, sys
steps = sys.argv[1].split()
folder = sys.argv[2]
result = {}
for step in steps:
    if step == "generate":
        import unsloth
        result["unsloth's edits"] = unsloth.generate(folder)
    elif step == "wrap":
        import unsloth
        unsloth.wrap()
    elif step == "trl":
        import trl.trainer.sft_trainer
    else:
        __import__(step)
import patcher
import trl.trainer.sft_trainer as sft
from patcher._recompile import is_rewritten

def lowest(cls):
    own = [c for c in cls.__mro__ if c.__module__ in (cls.__module__, "trl.trainer.sft_trainer")]
    function = [vars(c)["__init__"] for c in own if "__init__" in vars(c)][-1]
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function

class Seen(Exception):
    pass

def build(cls):  # what the guard is told when a trainer of this class is built for a hybrid
    from replacements.packing import guard
    from tests.support.models import tiny_model, token_documents
    from tests.support.sft import HYBRID, rows_of_documents, trainer
    def choose(trainer, **situation):
        raise Seen({name: type(value).__name__ for name, value in situation.items()})
    own, guard.choose = guard.choose, choose
    try:
        trainer(tiny_model(HYBRID), rows_of_documents(token_documents([3])), cls=cls, packing=True, peft_config={})
    except Seen as seen:
        return seen.args[0]
    finally:
        guard.choose = own

bound = sft.SFTTrainer
result["states"] = {row.name: row.state for row in patcher.status().rewrites}
result["rewritten"] = is_rewritten(lowest(bound))
result["the guard saw"] = build(bound)
top = bound.__init__
patcher.uninstall()
result["after"] = [row.state for row in patcher.status().rewrites]
result["taken back"] = not is_rewritten(lowest(bound)) and bound.__init__ is top
patcher.install()
result["again"] = is_rewritten(lowest(bound))
import transformers
patcher.uninstall()
result["no hook left"] = "__init_subclass__" not in vars(transformers.Trainer)
print(json.dumps(result))
"""


@pytest.fixture
def steps(tmp_path):
    (tmp_path / "unsloth.py").write_text(UNSLOTH)
    (tmp_path / "unsloth_zoo.py").write_text("")

    def run(order):
        paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        variables = {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "CI": "1", "PATCHER_DISABLE": ""}
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), order, str(tmp_path)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        "patcher trl unsloth generate wrap",  # TRL was rewritten before Unsloth came
        "patcher unsloth generate wrap",
        "unsloth generate wrap patcher",
        "unsloth patcher wrap",
        "unsloth wrap patcher",
    ],
)
def test_the_class_that_trainers_are_built_from_is_rewritten(steps, order):
    got = steps(order)
    assert got["rewritten"]
    assert got["states"]["sft-trainer"] == "left alone"
    assert got["the guard saw"].keys() == TOLD
    assert got["the guard saw"]["model"].endswith("ForCausalLM")
    assert got["the guard saw"]["peft_config"] == "dict"
    assert got.get("unsloth's edits", True)
    assert set(got["after"]) <= {"left alone", "reverted"}
    assert got["taken back"]
    assert got["again"]
    assert got["no hook left"]


WAITING = """
import unsloth_zoo.dataset_utils  # a release in which nothing is where it is looked for
import patcher
from patcher import _importhook
unsloth = ["unsloth", "unsloth_zoo"]
before = _importhook.watched()
try:
    patcher.install(zoo=True)
except patcher.PatchError:
    print(sorted(before) == sorted(_importhook.watched()), set(unsloth) <= set(before), patcher.status().installed)
patcher.uninstall()
print(_importhook.watched())
"""


def test_a_second_install_that_fails_keeps_waiting_and_uninstall_stops(tmp_path):
    (tmp_path / "unsloth_zoo").mkdir()
    (tmp_path / "unsloth_zoo" / "dataset_utils.py").write_text("def sft_prepare_dataset(self): pass\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    variables = {**os.environ, "PYTHONPATH": paths, "PATCHER_DISABLE": "", "PATCHER_ZOO": ""}
    done = subprocess.run([sys.executable, "-c", WAITING], env=variables, capture_output=True, text=True, check=False)
    assert done.stdout == "True True True\n[]\n", done.stderr
