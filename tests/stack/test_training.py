"""What real runs add around a step: checkpointing variants, precision, compilation, resuming, evaluation."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

import patcher
from replacements.packing.current import current
from replacements.packing.runtime import runtime_of
from tests.stack.test_accounting import expected_gradients, step_gradients
from tests.support.models import (
    gradients,
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    tiny_model,
    token_documents,
)
from tests.support.training import sft_trainer, training_batch

DOCUMENTS = token_documents([23, 1, 1, 70, 12, 40])


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    patcher.uninstall()


@pytest.fixture(scope="module")
def expected():
    return expected_gradients(tiny_model("qwen3_5"), [(d, d) for d in DOCUMENTS])


def rows(documents):
    return Dataset.from_dict({"input_ids": [d.tolist() for d in documents]})


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"selective": True}},
    ],
    ids=["checkpointed", "reentrant", "selective"],
)
def test_saving_memory_changes_no_gradient(settings, expected):
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, max_grad_norm=0.0, **settings)
    assert relative_error(step_gradients(trainer), expected) <= 1e-4
    assert current() is None


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="TRL offloads activations of an accelerator only")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_activation_offloading(checkpointing, expected):
    settings = {"activation_offloading": True, "gradient_checkpointing": checkpointing, "use_cpu": False}
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, max_grad_norm=0.0, **settings)
    got = {name: gradient.cpu() for name, gradient in step_gradients(trainer).items()}
    assert relative_error(got, expected) <= 1e-3


@pytest.mark.parametrize("collate", [{"remove_unused_columns": False}, {"dataloader_num_workers": 1}])
def test_ways_to_load_a_batch(collate, expected):
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, max_grad_norm=0.0, **collate)
    assert relative_error(step_gradients(trainer), expected) <= 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_documents_apart(dtype):
    """Packed and alone run other kernels, whose rounding differs by much here; a changed neighbour moves nothing."""
    row = packed_row(DOCUMENTS)
    moved = {**row, "input_ids": row["input_ids"].clone()}
    moved["input_ids"][0, 30] = 1
    model = patcher.pack(tiny_model("qwen3_5", tie_word_embeddings=False))
    with torch.autocast("cpu", dtype=dtype):
        before, after = log_probs(model, **row), log_probs(model, **moved)
    before[95:].square().mean().backward()
    assert torch.equal(before[:30], after[:30])
    assert torch.equal(before[95:], after[95:])
    assert not torch.equal(before[30:95], after[30:95])
    found = gradients(model)
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in found.values())
    seen = found["model.embed_tokens.weight"].any(1).nonzero().flatten()
    assert set(seen.tolist()) <= set(torch.cat(DOCUMENTS[-2:]).tolist())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_whole_models_in_other_precisions(dtype):
    model = tiny_model("qwen3_5", dtype=dtype)
    patcher.pack(model)
    loss = log_probs(model, **packed_row(DOCUMENTS)).square().mean()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("decay", [30.0, -30.0], ids=["forgets at once", "forgets nothing"])
def test_extreme_decays_stay_finite_and_apart(decay):
    model = tiny_model("qwen3_5")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.fill_(decay)
    with torch.no_grad():
        apart = log_probs_apart(model, DOCUMENTS)
    patcher.pack(model)
    packed = log_probs(model, **packed_row(DOCUMENTS))
    packed.square().mean().backward()
    assert (packed - apart).abs().max() <= 1e-4
    assert all(g.isfinite().all() for g in gradients(model).values())


def test_a_resumed_run_goes_on_packed(tmp_path):
    def trainer():
        settings = {"output_dir": str(tmp_path), "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
        return sft_trainer(tiny_model("qwen3_5"), DOCUMENTS * 2, packing=True, max_length=150, **settings)

    whole = trainer()
    whole.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert runtime_of(resumed.model).packed_forwards == 1
    states = zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in states)


def test_predicting_after_training_gives_the_documents_alone():
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True, per_device_eval_batch_size=2)
    trainer.train()
    batch = [d.tolist() for d in DOCUMENTS]
    output = trainer.predict(Dataset.from_dict({"input_ids": batch, "labels": batch}))
    logits = torch.from_numpy(output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions)
    lengths = [len(d) for d in DOCUMENTS]
    with torch.no_grad():
        apart = [trainer.model.eval()(input_ids=d[None]).logits[0] for d in DOCUMENTS]
    first = logits.reshape(-1, logits.shape[-1])[: lengths[0]]
    assert torch.allclose(first, apart[0], atol=1e-4)


def test_an_interrupted_run_leaves_no_boundaries():
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True)

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = trainer.model.model.layers[2].register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    handle.remove()
    assert current() is None
    trainer.train()


def test_two_trainers_in_threads(expected):
    other = token_documents([44, 3, 31, 30], seed=1)
    wanted = [expected, expected_gradients(tiny_model("qwen3_5"), [(d, d) for d in other])]
    settings = {"packing": True, "max_grad_norm": 0.0}
    trainers = [sft_trainer(tiny_model("qwen3_5"), documents, **settings) for documents in (DOCUMENTS, other)]
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(step_gradients, trainers))
    assert max(relative_error(*pair) for pair in zip(got, wanted, strict=True)) <= 1e-4


def test_a_callback_that_generates_and_evaluates():
    """Between packed steps the model is what it is without the patch."""
    prompt, seen = token_documents([9], seed=5)[0][None], []

    class Asks(TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            text = model.generate(prompt, max_new_tokens=4, do_sample=False)
            seen.append(({n: x.clone() for n, x in model.state_dict().items()}, text, []))
            control.should_evaluate = True

        def on_evaluate(self, args, state, control, metrics, **kwargs):
            seen[-1][2].append(metrics["eval_loss"])

    settings = {"packing": True, "max_steps": 2, "learning_rate": 1e-3, "eval_dataset": rows([DOCUMENTS[3]])}
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, eval_packing=False, **settings)
    trainer.add_callback(Asks())
    trainer.train()
    assert runtime_of(trainer.model).packed_forwards == 2
    patcher.uninstall()
    for state, text, losses in seen:
        stock = tiny_model("qwen3_5")
        stock.load_state_dict(state)
        assert torch.equal(stock.generate(prompt, max_new_tokens=4, do_sample=False), text)
        ids = DOCUMENTS[3]
        loss = -log_probs(stock, input_ids=ids[None])[:-1].gather(1, ids[1:, None]).mean()
        assert losses == [pytest.approx(float(loss), abs=1e-4)]


def test_uneven_last_batches():
    """Three rows in steps of two: the last step accumulates fewer."""
    trainer = sft_trainer(
        tiny_model("qwen3_5"),
        DOCUMENTS * 3,
        packing=True,
        max_length=150,
        gradient_accumulation_steps=2,
        max_steps=-1,
        num_train_epochs=1,
    )
    trainer.train()
    assert runtime_of(trainer.model).packed_forwards == len(trainer.train_dataset)


def test_the_batch_reaches_the_model_with_its_boundaries():
    trainer = sft_trainer(tiny_model("qwen3_5"), DOCUMENTS, packing=True)
    batch = training_batch(trainer)
    assert batch["seq_idx"].dtype == torch.int32
    assert batch["seq_idx"].shape == batch["input_ids"].shape == batch["position_ids"].shape
