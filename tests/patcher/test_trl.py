"""The real table on the installed TRL, in a fresh interpreter."""

import pytest

CODE = """
import sys
import patcher
waiting = {rewrite.state for rewrite in patcher.status().rewrites}
from trl import SFTTrainer
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling
places = [(SFTTrainer, "__init__"), (DataCollatorForLanguageModeling, "torch_call")]
new = [vars(owner)[name] for owner, name in places]
states = {rewrite.state for rewrite in patcher.status().rewrites if rewrite.package == "trl"}
patcher.uninstall()
old = [vars(owner)[name] for owner, name in places]
patcher.install()
again = [vars(owner)[name] for owner, name in places]
patcher.uninstall()
print(waiting, states)
print(["__patcher__" in f.__code__.co_freevars for f in (*new, *old, *again)])
print([vars(owner)[name] is before for (owner, name), before in zip(places, old)])
print([f.__code__.co_filename.endswith("sft_trainer.py") for f in old])
"""


@pytest.mark.slow
def test_waits_applies_and_takes_back(python):
    out = python("-c", CODE, PATCHER_DISABLE="", HF_HUB_OFFLINE="1", CI="1").splitlines()
    assert out[0] == "{'waiting'} {'applied'}"
    assert out[1] == str([True, True, False, False, True, True])
    assert out[2] == out[3] == "[True, True]"
