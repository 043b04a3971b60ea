"""Tiny models: the variant that builds, and no patch that comes along unasked."""

import subprocess
import sys

import pytest
import torch

from tools import tiny_models


def test_the_first_variant_that_builds_is_taken(monkeypatch):
    monkeypatch.setitem(tiny_models.FAMILIES["lfm2"], "variants_to_try", [{"hidden_size": "wide"}, {"vocab_size": 96}])
    model = tiny_models.tiny_model("lfm2", dtype=torch.float64)
    assert model.config.vocab_size == 96
    assert model.dtype == torch.float64
    assert not model.training


def test_a_variant_that_builds_and_does_not_run_is_passed_over(monkeypatch):
    monkeypatch.setitem(tiny_models.FAMILIES["lfm2"], "variants_to_try", [{"vocab_size": 2}, {}])
    assert tiny_models.tiny_model("lfm2").config.vocab_size == 2
    assert tiny_models.tiny_model("lfm2", runs=True).config.vocab_size > 2


def test_each_variant_that_does_not_build_says_why(monkeypatch):
    monkeypatch.setitem(tiny_models.FAMILIES["lfm2"], "variants_to_try", [{"hidden_size": "wide"}, {"hidden_size": -1}])
    with pytest.raises(RuntimeError, match=r"no variant of lfm2 builds here: .*wide.*; .*-1"):
        tiny_models.tiny_model("lfm2")


def test_the_patch_does_not_come_along():
    """Lanes of the matrix build models before the patch, or without it."""
    code = "import sys, tools.tiny_models; sys.exit('patcher' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
