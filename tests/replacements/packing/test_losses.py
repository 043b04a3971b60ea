"""Every way in which TRL computes the loss: packed it is what it is on the documents padded."""

import sys
import types

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast
from trl import SFTConfig

import patcher
from replacements.packing.runtime import detach_all, runtime_of
from tests.support.models import families, relative_error, tiny_model, token_documents
from tests.support.sft import apart, rows_of_documents, step, trainer
from tests.support.situations import tiny_llama

DOCUMENTS = token_documents([23, 1, 70, 5, 40, 33])
#: Older releases have one loss, some newer ones a default that returns no logits.
WITH_LOGITS = {"loss_type": "nll"} if "loss_type" in SFTConfig.__dataclass_fields__ else {}
HYBRIDS = [family for family in ("qwen3_5", "qwen3_next", "mamba2", "lfm2") if family in families()]


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    detach_all()
    patcher.uninstall()


def takes(**changes):
    """Whether this TRL accepts the settings."""
    try:
        trainer(tiny_llama(), rows_of_documents(DOCUMENTS), **changes)
    except (ValueError, TypeError):
        return False
    return True


def own_loss(outputs, labels, num_items_in_batch=None):
    """A `compute_loss_func`: a mean of squares of what the model says of each target."""
    logits, targets = outputs.logits[:, :-1].log_softmax(-1), labels[:, 1:]
    counted = targets != -100
    return logits.gather(2, targets.clamp(min=0)[..., None]).squeeze(2)[counted].square().mean()


PATHS = {
    "default": {},
    "nll": {"loss_type": "nll"},
    "dft": {"loss_type": "dft"},
    "chunked_nll": {"loss_type": "chunked_nll"},
    "label smoothing": {"label_smoothing_factor": 0.1, **WITH_LOGITS},
    "own loss": {"compute_loss_func": own_loss, **WITH_LOGITS},
    "checkpointing": {"gradient_checkpointing": True},
    "flattened": {"packing": False, "padding_free": True, "max_length": None, "per_device_train_batch_size": 6},
}


@pytest.fixture(params=PATHS)
def path(request):
    settings = PATHS[request.param]
    if "loss_type" in settings and not takes(**settings):
        pytest.skip("this TRL has no such loss")
    return settings


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_packed_step_is_the_padded_step(path, family):
    model, data = tiny_model(family), rows_of_documents(DOCUMENTS)
    plain = {name: value for name, value in path.items() if name not in ("packing", "padding_free")}
    padded = trainer(model, data, **{**plain, "per_device_train_batch_size": 6})
    try:
        expected_loss, expected = step(padded)
    except AttributeError as error:
        pytest.skip(f"this TRL cannot train the family in this way at all: {error}")
    model = tiny_model(family)
    loss, found = step(trainer(model, data, **{"packing": True, **path}))
    assert runtime_of(model).packed_forwards >= 1
    assert abs(loss - expected_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_outputs_beside_the_loss():
    model = tiny_model(HYBRIDS[0])
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, **WITH_LOGITS)
    batch = next(iter(built.get_train_dataloader()))
    in_row = batch["input_ids"][0].split(batch["seq_idx"][0].unique(return_counts=True)[1].tolist())
    model.eval()
    with torch.no_grad():
        apart = torch.cat([model(input_ids=document[None]).logits[0] for document in in_row])
        _, outputs = built.compute_loss(model, batch, return_outputs=True)
    assert (outputs.logits[0] - apart).abs().max() <= 1e-4


def accuracy(predicted):
    targets = predicted.label_ids[:, 1:]
    logits = predicted.predictions[0] if isinstance(predicted.predictions, tuple) else predicted.predictions
    guesses = logits[:, :-1].argmax(-1)
    counted = targets != -100
    return {"right": int((guesses == targets)[counted].sum()), "of": int(counted.sum())}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_metrics_of_an_evaluation():
    """Evaluation with `compute_metrics` keeps the logits and takes another way through the model."""
    found = []
    for settings in ({"packing": True}, {"per_device_eval_batch_size": 6}):
        model = tiny_model(HYBRIDS[0])
        built = trainer(
            model,
            rows_of_documents(DOCUMENTS),
            eval_dataset=rows_of_documents(DOCUMENTS),
            compute_metrics=accuracy,
            **WITH_LOGITS,
            **settings,
        )
        found.append(built.evaluate())
    packed, padded = found
    assert packed["eval_of"] == padded["eval_of"] == sum(len(document) - 1 for document in DOCUMENTS)
    assert packed["eval_right"] == padded["eval_right"]
    expected, _ = apart(tiny_model(HYBRIDS[0]), DOCUMENTS)
    assert abs(packed["eval_loss"] - expected) <= 1e-4


def test_liger():
    pytest.importorskip("liger_kernel", reason="liger_kernel needs triton, and so a GPU")
    expected_loss, _ = step(trainer(tiny_llama(), rows_of_documents(DOCUMENTS), per_device_train_batch_size=6))
    built = trainer(tiny_llama(), rows_of_documents(DOCUMENTS), packing=True, use_liger_kernel=True)
    assert abs(step(built)[0] - expected_loss) <= 1e-4


class Liger(types.ModuleType):
    """In short what liger_kernel does to a model: other norms, and where it is allowed a loss without the logits."""

    @staticmethod
    def _apply_liger_kernel_to_instance(model, fused_linear_cross_entropy=True, **options):
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                module.forward = module.forward
        if fused_linear_cross_entropy:
            model.forward = types.MethodType(_without_logits, model)


def _without_logits(self, input_ids, labels=None, num_items_in_batch=None, **kwargs):
    hidden = self.model(input_ids=input_ids, **kwargs).last_hidden_state
    logits = self.lm_head(hidden)
    loss = None
    if labels is not None:
        loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch=num_items_in_batch)
    return CausalLMOutputWithPast(loss=loss, logits=logits)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("applied", ["by transformers", "beforehand"])
def test_kernels_of_liger_on_a_hybrid(applied, monkeypatch):
    """They replace the forwards of a model and of its parts; the boundaries arrive past both."""
    expected, _ = apart(tiny_model(HYBRIDS[0]), DOCUMENTS)
    model, settings = tiny_model(HYBRIDS[0]), {}
    if applied == "beforehand":
        Liger._apply_liger_kernel_to_instance(model)
    else:
        liger = pytest.importorskip("transformers.integrations.liger")
        monkeypatch.setattr(liger, "is_liger_kernel_available", lambda *a: True)
        monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
        monkeypatch.setitem(sys.modules, "liger_kernel.transformers", Liger("liger_kernel.transformers"))
        settings = {"use_liger_kernel": True}
    try:
        built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, **WITH_LOGITS, **settings)
    except ImportError:
        pytest.skip("this TRL looks for the package itself")
    built.train()
    assert runtime_of(model).packed_forwards == 1
    assert abs(built.state.log_history[0]["loss"] - expected) <= 1e-3
