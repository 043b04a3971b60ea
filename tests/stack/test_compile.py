"""torch.compile: graph breaks at the doors and around the ops; right, and recompiled a bounded number of times."""

import pytest
import torch
import torch._dynamo

import patcher
from replacements.packing.runtime import runtime_of
from tests.stack.test_accounting import expected_gradients, step_gradients
from tests.support.models import (
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    tiny_model,
    token_documents,
)
from tests.support.training import sft_trainer


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    patcher.uninstall()


def small_model():
    """One layer of each kind: tracing takes seconds a layer."""
    return tiny_model("qwen3_5", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"])


ROWS = [[12, 1, 20], [5, 30], [33], [9, 9, 9, 9], [40, 2]]


def test_a_compiled_model_keeps_documents_apart_over_rows_of_changing_lengths():
    model = small_model()
    documents = [token_documents(lengths, seed=i) for i, lengths in enumerate(ROWS)]
    with torch.no_grad():
        apart = [log_probs_apart(model, row) for row in documents]
        plain = {"input_ids": documents[0][0][None]}
        stock = model(**plain).logits
        patcher.pack(model)
        compiled = torch.compile(model, backend="eager", dynamic=True)
        for row, expected in zip(documents, apart, strict=True):
            assert (log_probs(compiled, **packed_row(row)) - expected).abs().max() <= 1e-4
        seen = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for row, expected in zip(documents * 2, apart * 2, strict=True):
            assert (log_probs(compiled, **packed_row(row)) - expected).abs().max() <= 1e-4
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == seen
        assert torch.allclose(compiled(**plain).logits, stock, atol=1e-5)


def test_gradients_of_a_compiled_model():
    model, documents = small_model(), token_documents([12, 1, 20])
    patcher.pack(model)
    log_probs(model, **packed_row(documents)).square().mean().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    compiled = torch.compile(model, backend="aot_eager", dynamic=True)
    log_probs(compiled, **packed_row(documents)).square().mean().backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-6)


def test_a_trainer_that_compiles():
    patcher.install()
    documents = token_documents([12, 1, 20, 33])
    expected = expected_gradients(small_model(), [(document, document) for document in documents])
    settings = {"packing": True, "max_grad_norm": 0.0, "torch_compile": True, "torch_compile_backend": "aot_eager"}
    trainer = sft_trainer(small_model(), documents, **settings)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert relative_error(step_gradients(trainer), expected) <= 1e-4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > before
    assert runtime_of(trainer.model).packed_forwards == 1
