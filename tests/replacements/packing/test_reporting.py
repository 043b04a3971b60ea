"""What packing does is in the trainer's log; nothing is where packing was not asked for."""

import pytest
import torch
from transformers import TrainerCallback

import patcher
from replacements.kernels.segments import Segments
from replacements.packing.current import Scope, enter, leave
from replacements.packing.reporting import Meter, Report
from replacements.packing.runtime import runtime_of
from tests.support.models import tiny_model, token_documents
from tests.support.training import sft_trainer

LENGTHS = [23, 1, 1, 1, 70, 130, 64, 5]


@pytest.fixture(autouse=True)
def _installed():
    patcher.install()
    yield
    patcher.uninstall()


class Tracker(TrainerCallback):
    """What a tracker that `report_to` names is given."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))


def logged(model, **settings):
    trainer = sft_trainer(model, token_documents(LENGTHS), **settings)
    tracker = Tracker()
    trainer.callback_handler.callbacks.insert(1, tracker)  # where those of `report_to` are
    trainer.train()
    return tracker.logs[0]


def test_a_packed_step():
    logs = logged(tiny_model("qwen3_5"), packing=True, max_length=512)
    assert logs["packing/packed"] == 1
    assert logs["packing/documents_per_row"] == len(LENGTHS)
    assert logs["packing/padding"] == 0
    assert logs["packing/padding_saved"] == pytest.approx(1 - sum(LENGTHS) / (max(LENGTHS) * len(LENGTHS)))
    assert logs["packing/real_tokens_per_second"] > 0


def test_a_padded_step_says_why():
    logs = logged(tiny_model("minimax"), packing=True)
    assert logs["packing/packed"] == 0
    assert logs["packing/reason/unsupported-mixer"] == 1
    assert "packing/documents_per_row" not in logs


def test_who_does_not_pack_is_told_nothing():
    model = tiny_model("qwen3_5")
    trainer = sft_trainer(model, token_documents(LENGTHS))
    assert not any(isinstance(callback, Report) for callback in trainer.callback_handler.callbacks)
    trainer.train()
    assert not any(name.startswith("packing") for entry in trainer.state.log_history for name in entry)


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    trainer = sft_trainer(
        tiny_model("qwen3_5"),
        token_documents(LENGTHS),
        packing=True,
        report_to=["tensorboard"],
        output_dir=str(tmp_path),
    )
    trainer.train()
    events = next(tmp_path.rglob("events.*"))
    tags = accumulator.EventAccumulator(str(events.parent)).Reload().Tags()["scalars"]
    assert "train/packing/documents_per_row" in tags


def test_uninstalling_takes_the_meter_along():
    model = tiny_model("qwen3_5")
    sft_trainer(model, token_documents(LENGTHS), packing=True)
    backbone = runtime_of(model).backbone
    assert any(isinstance(hook, Meter) for hook in backbone._forward_pre_hooks.values())
    patcher.uninstall()
    assert not backbone._forward_pre_hooks


def metered(meter, segments, ids, training=True):
    module = torch.nn.Identity().train(training)
    enter(Scope(None, module, segments, *ids.shape))
    try:
        meter(module, (), {"input_ids": ids})
    finally:
        leave(module)
    return meter.read()


def test_the_filled_end_of_a_row_is_no_document():
    ids = torch.tensor([[5, 6, 7, 8, 9, 9, 9, 9], [5, 6, 7, 8, 9, 9, 0, 0]])
    seen = metered(Meter(pad_token_id=0), Segments([3, 5, 2, 4, 2], rows=2), ids)
    assert seen["packing/documents_per_row"] == 2
    assert seen["packing/padding"] == pytest.approx(2 / 16)
    assert seen["packing/padding_saved"] == pytest.approx(1 - 14 / 20 - 2 / 16)


def test_rows_of_single_documents_count():
    seen = metered(Meter(pad_token_id=0), None, torch.tensor([[5, 6, 7, 8], [5, 6, 0, 0]]))
    assert seen["packing/documents_per_row"] == 1
    assert seen["packing/padding"] == pytest.approx(2 / 8)


def test_evaluation_is_not_counted():
    assert metered(Meter(pad_token_id=0), Segments([3, 1]), torch.tensor([[5, 6, 7, 8]]), training=False) == {}
