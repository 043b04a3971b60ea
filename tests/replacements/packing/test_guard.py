"""One verdict for each reason, and what a verdict does to a trainer."""

import copy
import logging
from types import SimpleNamespace

import peft
import pytest
import torch
from datasets import Dataset, Features, IterableDataset, List, Value

from replacements.packing import dispatch, rules
from replacements.packing.guard import PackingRefusedError, choose, judge
from replacements.packing.runtime import attach, runtime_of
from replacements.packing.settings import SettingError
from replacements.packing.verdict import LEAVE, PACK, Reason
from tests.support.models import tiny_model
from tests.support.situations import (
    settings,
    situation,
    tiny_encoder_decoder,
    tiny_llama,
    with_convolution,
    with_recurrence,
)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    for name in ("PATCHER_ON_UNSAFE", "PATCHER_HYBRID_PACKING"):
        monkeypatch.delenv(name, raising=False)
    yield
    dispatch.unwrap_all()


@pytest.fixture(scope="module")
def hybrid():
    return tiny_model("qwen3_5")


@pytest.fixture(scope="module")
def llama():
    return tiny_llama()


def text(**columns):
    return Dataset.from_dict({"input_ids": [[1, 2, 3]], **columns})


def packed_rows():
    return text(seq_lengths=[[1, 2]])


def reason_of(facts):
    return judge(facts).reason


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"packing": False}, LEAVE),
        ({"packing": True}, PACK),
        ({"packing": False, "padding_free": True}, PACK),
        ({"packing": False, "eval_packing": True}, PACK),
        ({"packing": True, "eval_packing": False}, PACK),
        ({"packing": True, "packing_strategy": "wrapped"}, LEAVE),
        ({"packing": True, "packing_strategy": "wrapped", "padding_free": True}, PACK),
        ({"packing": True, "packing_strategy": "bfd_split"}, PACK),
    ],
)
def test_what_is_asked_for(hybrid, asked, expected):
    assert judge(situation(hybrid, args=settings(**asked))) == expected


def test_settings_without_evaluation_packing(llama):
    args = settings()
    del args.eval_packing
    assert judge(situation(llama, args=args)) == PACK


def test_an_encoder_decoder():
    assert reason_of(situation(tiny_encoder_decoder())) is Reason.ENCODER_DECODER


def test_an_encoder_decoder_inside_a_composite_config(llama):
    model = copy.deepcopy(llama)
    model.config.get_text_config = lambda: SimpleNamespace(is_encoder_decoder=True)
    assert reason_of(situation(model)) is Reason.ENCODER_DECODER


@pytest.mark.parametrize("family", ["minimax", "rwkv", "xlstm"])
def test_a_recurrence_that_no_op_isolates(family):
    made = judge(situation(tiny_model(family)))
    assert made.reason is Reason.UNSUPPORTED_MIXER
    assert made.evidence["detail"]


def test_kernels_called_in_an_unknown_way(hybrid, monkeypatch):
    monkeypatch.setattr(dispatch, "_points", lambda mixer: [])
    made = judge(situation(hybrid))
    assert made.reason is Reason.NO_DISPATCH
    assert "Qwen3_5GatedDeltaNet.gated_delta_rule" in made.evidence["detail"]


def test_hybrid_packing_switched_off(hybrid, llama, monkeypatch):
    monkeypatch.setenv("PATCHER_HYBRID_PACKING", "0")
    assert reason_of(situation(hybrid)) is Reason.SWITCHED_OFF
    assert judge(situation(llama)) == PACK


@pytest.mark.parametrize("leak", [with_recurrence, with_convolution])
def test_a_leak_that_no_name_gives_away(leak):
    made = judge(situation(leak(tiny_llama())))
    assert made.reason is Reason.LEAK
    assert "nats" in made.sentence


def test_a_model_that_cannot_run_a_packed_row(llama):
    model = copy.deepcopy(llama)
    model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no kernel image")))
    made = judge(situation(model))
    assert made.reason is Reason.PROBE_FAILED
    assert "RuntimeError: no kernel image" in made.sentence
    assert runtime_of(model) is None


@pytest.mark.parametrize("asked", [{"packing": True}, {"packing": False, "padding_free": True}])
def test_a_collator_of_the_users_own(llama, asked):
    made = judge(situation(llama, args=settings(**asked), data_collator=lambda examples: examples))
    assert made.reason is Reason.CUSTOM_COLLATOR


@pytest.mark.parametrize("column", ["image", "images", "pixel_values", "video", "videos"])
def test_images_in_the_data(llama, column):
    made = judge(situation(llama, train_dataset=text(**{column: [0]})))
    assert made.reason is Reason.VISION_DATA
    assert column in made.sentence


def test_images_in_one_of_several_evaluation_sets(llama):
    facts = situation(llama, train_dataset=text(), eval_dataset={"a": text(), "b": text(image=[0])})
    assert reason_of(facts) is Reason.VISION_DATA


def unread():
    raise AssertionError("the stream was read")
    yield


@pytest.fixture
def stream():
    return IterableDataset.from_generator(unread)


@pytest.fixture(scope="module")
def seeing():
    model = tiny_llama()
    model.config.vision_config = {"hidden_size": 8}
    return model


def test_a_stream_of_unknown_columns_with_a_model_that_sees(seeing, llama, stream):
    assert reason_of(situation(seeing, train_dataset=stream)) is Reason.UNKNOWN_STREAM
    assert judge(situation(llama, train_dataset=stream)) == PACK


def test_a_stream_with_features_with_a_model_that_sees(seeing):
    known = IterableDataset.from_generator(unread, features=Features({"text": Value("string")}))
    assert judge(situation(seeing, train_dataset=known)) == PACK


def test_a_processor_where_trl_needs_a_tokenizer(seeing, llama, monkeypatch):
    from transformers import ProcessorMixin

    processor = object.__new__(ProcessorMixin)
    assert judge(situation(llama, processing_class=processor)) == PACK, "this TRL asks the dataset"
    monkeypatch.setattr(rules, "_trl_needs_tokenizer", lambda: True)
    assert reason_of(situation(llama, processing_class=processor)) is Reason.PROCESSOR
    assert reason_of(situation(seeing)) is Reason.PROCESSOR
    assert judge(situation(llama)) == PACK


def test_whether_trl_needs_a_tokenizer_is_read_from_its_own_message(monkeypatch):
    class SFTTrainer:
        def __init__(self):
            raise ValueError("Packing is not supported for vision-language models. Please …")

    monkeypatch.setitem(rules.sys.modules, "trl.trainer.sft_trainer", SimpleNamespace(SFTTrainer=SFTTrainer))
    assert rules._trl_needs_tokenizer()
    monkeypatch.delitem(rules.sys.modules, "trl.trainer.sft_trainer")
    assert not rules._trl_needs_tokenizer()


SPLITS = [("cp_size", Reason.CONTEXT_PARALLELISM), ("sp_size", Reason.SEQUENCE_PARALLELISM)]


def split(name, size=2):
    return SimpleNamespace(**{"cp_size": 1, "sp_size": 1, name: size})


@pytest.mark.parametrize(("name", "reason"), SPLITS)
def test_rows_split_between_devices(llama, monkeypatch, name, reason):
    args = settings(parallelism_config=split(name))
    assert reason_of(situation(llama, args=args)) is reason
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv(f"PARALLELISM_CONFIG_{name.upper()}", "4")
    assert reason_of(situation(llama)) is reason
    assert judge(situation(llama, args=settings(parallelism_config=split(name, 1)))) == PACK, "the settings rule"
    monkeypatch.setenv(f"PARALLELISM_CONFIG_{name.upper()}", "1")
    assert judge(situation(llama)) == PACK


@pytest.mark.parametrize(("name", "reason"), SPLITS)
def test_rows_split_by_an_accelerator_that_is_there_already(llama, monkeypatch, name, reason):
    from accelerate.state import AcceleratorState

    monkeypatch.setattr(AcceleratorState, "_shared_state", {"parallelism_config": split(name)})
    assert reason_of(situation(llama)) is reason


def test_sizes_as_accelerate_holds_them(llama, monkeypatch):
    from accelerate.parallelism_config import ParallelismConfig

    if "sp_size" not in ParallelismConfig.__dataclass_fields__:
        pytest.skip("this accelerate has no sequence parallelism")
    args = settings(parallelism_config=ParallelismConfig(sp_size=2))
    assert reason_of(situation(llama, args=args)) is Reason.SEQUENCE_PARALLELISM


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", ["cp_size", "sp_size"])
def test_a_recurrent_model_on_split_rows_is_mentioned_once(hybrid, llama, caplog, name, packing):
    args = settings(packing=packing, parallelism_config=split(name))
    judge(situation(llama, args=args))
    assert not caplog.messages
    for _ in range(2):
        made = judge(situation(hybrid, args=args))
    assert made.action == ("pad" if packing else "leave")
    assert len(caplog.messages) == 1
    assert f"{name}=2" in caplog.messages[0]


@pytest.mark.parametrize("packing", [True, False])
def test_a_size_that_is_no_number_is_not_ours_to_complain_of(llama, monkeypatch, packing):
    monkeypatch.setenv("ACCELERATE_USE_PARALLELISM_CONFIG", "true")
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_SIZE", "many")
    assert judge(situation(llama, args=settings(packing=packing))).action == ("pad" if packing else "leave")


def prompt_learning(kind):
    return getattr(peft, kind)(task_type="CAUSAL_LM", num_virtual_tokens=3)


@pytest.mark.parametrize("kind", ["PromptTuningConfig", "PrefixTuningConfig", "PromptEncoderConfig"])
def test_a_config_that_learns_a_prompt(llama, kind):
    made = judge(situation(llama, peft_config=prompt_learning(kind)))
    assert made.reason is Reason.PROMPT_LEARNING
    assert kind in made.sentence


def test_a_wrapped_model_whose_active_adapter_learns_a_prompt(llama):
    model = peft.get_peft_model(copy.deepcopy(llama), prompt_learning("PromptTuningConfig"))
    assert reason_of(situation(model)) is Reason.PROMPT_LEARNING


def test_an_adapter_of_the_weights_packs(llama):
    lora = peft.LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")
    assert judge(situation(llama, peft_config=lora)) == PACK
    assert judge(situation(peft.get_peft_model(copy.deepcopy(llama), lora))) == PACK


def test_rows_packed_beforehand_are_prepared_twice(llama):
    made = judge(situation(llama, args=settings(packing=False), train_dataset=packed_rows()))
    assert (made.action, made.reason) == ("refuse", Reason.PREPARED_TWICE)


SKIP = {"dataset_kwargs": {"skip_prepare_dataset": True}}


@pytest.mark.parametrize("packing", [True, False])
def test_rows_packed_beforehand_and_left_alone(llama, packing):
    args = settings(packing=packing, **SKIP)
    assert judge(situation(llama, args=args, train_dataset=packed_rows())) == PACK
    made = judge(situation(tiny_encoder_decoder(), args=args, train_dataset=packed_rows()))
    assert (made.action, made.reason) == ("refuse", Reason.PACKED_BEFOREHAND)
    assert "[encoder-decoder]" in made.sentence


def test_a_column_of_that_name_which_is_no_list_of_lengths(llama):
    counts = text(seq_lengths=[3])
    assert judge(situation(llama, args=settings(packing=False), train_dataset=counts)) == LEAVE
    features = Features({"input_ids": List(Value("int64")), "seq_lengths": List(Value("int64"))})
    assert situation(llama, train_dataset=packed_rows().cast(features)).packed_beforehand


def test_a_collator_that_flattens(llama):
    from transformers import DataCollatorWithFlattening

    plain = settings(packing=False)
    assert judge(situation(llama, args=plain, data_collator=DataCollatorWithFlattening())) == PACK
    made = judge(situation(with_recurrence(tiny_llama()), args=plain, data_collator=DataCollatorWithFlattening()))
    assert (made.action, made.reason) == ("refuse", Reason.FLATTENING_COLLATOR)


def test_a_model_that_cannot_be_read(llama):
    made = judge(situation(SimpleNamespace()))
    assert (made.action, made.reason) == ("pad", Reason.UNREADABLE)
    assert "AttributeError" in made.sentence


def test_a_wrong_setting_is_the_users_to_correct(hybrid, monkeypatch):
    monkeypatch.setenv("PATCHER_HYBRID_PACKING", "on please")
    with pytest.raises(SettingError):
        judge(situation(hybrid))


def test_wrapped_packing_of_a_hybrid_is_mentioned_once(hybrid, llama, caplog):
    args = settings(packing_strategy="wrapped")
    judge(situation(llama, args=args))
    assert not caplog.messages
    for _ in range(2):
        judge(situation(hybrid, args=args))
    assert len(caplog.messages) == 1
    assert "wrapped" in caplog.messages[0]


def chosen(model, **changes):
    args, trainer = settings(**changes), SimpleNamespace()
    before = dict(vars(args))
    after = choose(trainer, model=model, args=args)
    assert vars(args) == before, "the user's own settings were written to"
    return args, after, trainer._patcher_verdict


def test_a_trainer_that_may_pack_keeps_its_settings(llama):
    args, after, made = chosen(llama)
    assert after is args
    assert made == PACK


def test_a_padded_trainer_gets_a_copy(caplog):
    with caplog.at_level(logging.WARNING, logger="patcher"):
        args, after, made = chosen(tiny_encoder_decoder(), padding_free=True, eval_packing=True)
        chosen(tiny_encoder_decoder())
    assert after is not args
    assert (after.packing, after.padding_free, after.eval_packing) == (False, False, False)
    assert made.action == "pad"
    assert len(caplog.messages) == 1
    assert "[encoder-decoder]" in caplog.messages[0]


def test_raise_instead_of_padding(monkeypatch, caplog):
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "raise")
    with pytest.raises(PackingRefusedError, match=r"\[encoder-decoder\].*PATCHER_ON_UNSAFE=pad"):
        chosen(tiny_encoder_decoder())
    assert not caplog.messages


def test_a_refusal_is_an_error_whatever_is_set(llama, monkeypatch):
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "pad")
    with pytest.raises(PackingRefusedError, match=r"\[prepared-twice\].*skip_prepare_dataset"):
        choose(SimpleNamespace(), model=llama, args=settings(), train_dataset=packed_rows())


def test_the_guard_leaves_no_hooks(hybrid):
    judge(situation(hybrid))
    assert runtime_of(hybrid) is None
    hooks = [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in hybrid.modules()]
    assert not any(hooks)


def test_the_guard_leaves_the_runtime_of_another_trainer(hybrid):
    runtime = attach(hybrid)
    judge(situation(hybrid))
    assert runtime_of(hybrid) is runtime
    assert runtime._handles
    runtime.detach()


def test_the_guard_leaves_the_gradients(llama):
    judge(situation(llama))
    assert all(p.grad is None and p.requires_grad for p in llama.parameters())
    assert torch.is_grad_enabled()
