"""What packed and alone are measured with: rows as collators make them, a model left as it was."""

import random

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from replacements.packing.checking.configs import named_class
from replacements.packing.measuring import (
    coarsest_epsilon,
    largest_difference,
    log_probs,
    packed_row,
    random_documents,
    undisturbed,
)
from replacements.packing.texts import one_line
from tests.support.situations import tiny_llama


def test_a_row():
    row = packed_row([torch.tensor([5, 6, 7]), torch.tensor([8]), torch.tensor([9, 5])])
    assert row["input_ids"].tolist() == [[5, 6, 7, 8, 9, 5]]
    assert row["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1]]
    assert row["seq_idx"].tolist() == [[0, 0, 0, 1, 2, 2]]
    assert (row["position_ids"].dtype, row["seq_idx"].dtype) == (torch.int64, torch.int32)
    assert "seq_idx" not in packed_row([torch.tensor([5])], seq_idx=False)


def test_documents_hold_no_token_with_a_meaning():
    model = tiny_llama()
    model.config.pad_token_id, model.config.eos_token_id = 3, [4, 5]
    one, other = random_documents(model, (4000, 30))
    assert (len(one), len(other)) == (4000, 30)
    missing = set(range(model.config.vocab_size)) - set(one.tolist())
    assert missing >= {3, 4, 5}
    assert len(missing) < 10


def test_log_probs_of_a_part_are_those_of_the_whole():
    model = tiny_llama().double()
    row = packed_row(random_documents(model))
    with torch.no_grad():
        whole = log_probs(model, row)
        assert torch.equal(log_probs(model, row, slice(37, None)), whole[37:])
    assert whole.dtype == torch.float64
    assert torch.allclose(whole.exp().sum(-1), torch.ones(68).double())


def test_what_is_no_number_is_infinitely_far():
    assert largest_difference(torch.tensor([1.0, 2.0]), torch.tensor([1.5, 2.0])) == 0.5
    assert largest_difference(torch.tensor([1.0, torch.nan]), torch.zeros(2)) == torch.inf


def test_the_coarsest_dtype_counts():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    assert coarsest_epsilon(model) == torch.finfo(torch.bfloat16).eps


class Restless(nn.Module):
    """Moves everything that a forward can move."""

    def __init__(self):
        super().__init__()
        self.inner = nn.BatchNorm1d(3).train()
        self.dropout = nn.Dropout(0.5).eval()

    def forward(self):
        assert not any(module.training for module in self.modules())
        self.inner.running_mean += random.random() + np.random.rand() + torch.rand(())


def test_a_model_and_the_random_states_are_left_as_they_were():
    model = Restless()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    modes = [module.training for module in model.modules()]
    states = [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]
    with undisturbed(model):
        model()
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()] == states


@pytest.mark.parametrize("named", [None, [], ["NoSuchModel"], ["AutoConfig"], "LlamaForCausalLM", [3]])
def test_a_config_that_names_no_class_of_transformers(named):
    assert named_class(transformers.LlamaConfig(architectures=["LlamaForCausalLM"])) is transformers.LlamaForCausalLM
    config = transformers.LlamaConfig()
    config.architectures = named
    assert named_class(config) is None


def test_an_error_in_one_line():
    assert one_line(ValueError("a\n  b")) == "ValueError: a b"
    assert one_line(ValueError("abc"), 12) == "ValueError: "


def test_gradients_can_be_taken_of_an_undisturbed_model():
    model = tiny_llama()
    with undisturbed(model):
        assert log_probs(model, packed_row(random_documents(model))).requires_grad
