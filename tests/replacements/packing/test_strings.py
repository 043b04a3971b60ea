"""Models given by name: what is known before their weights, and what is left to TRL."""

import json
import logging
import random
from types import SimpleNamespace

import huggingface_hub.errors as hub_errors
import numpy as np
import pytest
import torch
import transformers
from datasets import Dataset

import patcher
from replacements.packing import strings
from replacements.packing.guard import PackingRefusedError
from replacements.packing.runtime import detach_all, runtime_of
from replacements.packing.strings import build, foresee, imagine, init_kwargs, resolve
from tests.support.models import tiny_model, token_documents
from tests.support.sft import config, packed_rows, rows_of_documents, trainer
from tests.support.situations import llama_config, settings, tiny_encoder_decoder, tiny_llama
from tests.support.training import tiny_tokenizer


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    monkeypatch.delenv("PATCHER_ON_UNSAFE", raising=False)


@pytest.fixture
def llama(tmp_path):
    return folder_of(llama_config(architectures=["LlamaForCausalLM"]), tmp_path / "llama")


def folder_of(made, path):
    made.save_pretrained(path)
    return str(path)


def asked(**changes):
    return settings(**{"model_init_kwargs": None, **changes})


REMOTE = """
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel


class AcmeConfig(PretrainedConfig):
    model_type = "acme"
    vocab_size = 128


class AcmeScan(nn.Module):
    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(4))


class AcmeForCausalLM(PreTrainedModel):
    config_class = AcmeConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(128, 8)
        self.scan = AcmeScan()
        self.post_init()

    def get_input_embeddings(self):
        return self.embed
"""


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A folder with its own modeling file, in which a recurrence stands that nobody knows."""
    path = tmp_path / "remote"
    path.mkdir()
    (path / "modeling_acme.py").write_text(REMOTE)
    mapped = {"AutoConfig": "modeling_acme.AcmeConfig", "AutoModelForCausalLM": "modeling_acme.AcmeForCausalLM"}
    declared = {"model_type": "acme", "architectures": ["AcmeForCausalLM"], "auto_map": mapped}
    (path / "config.json").write_text(json.dumps(declared))
    return str(path)


def test_a_config_becomes_a_model_without_weights(llama):
    model = build(resolve(llama, {}))
    assert isinstance(model, transformers.LlamaForCausalLM)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_everything_that_says_where_a_config_is_is_handed_on(monkeypatch):
    """As `from_pretrained` takes it; what is for the weights is left out."""
    calls = []
    monkeypatch.setattr(
        transformers.AutoConfig, "from_pretrained", lambda *args, **kwargs: calls.append((args, kwargs))
    )
    where = {
        "revision": "r",
        "subfolder": "s",
        "token": "t",
        "cache_dir": "c",
        "code_revision": "v",
        "local_files_only": True,
        "proxies": {"http": "p"},
    }
    resolve("a/b", {**where, "trust_remote_code": True, "dtype": "bfloat16", "device_map": "auto"})
    assert calls == [(("a/b",), {**where, "trust_remote_code": True})]


@pytest.mark.parametrize(
    ("options", "token"), [({"use_auth_token": "old"}, "old"), ({"use_auth_token": "old", "token": "new"}, "new")]
)
def test_the_older_name_of_the_token(monkeypatch, options, token):
    seen = {}
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", lambda name, **kwargs: seen.update(kwargs))
    resolve("a/b", options)
    assert seen == {"token": token, "trust_remote_code": False}


def test_a_config_given_beside_the_name(llama, tmp_path):
    given = llama_config()
    assert resolve("nowhere/at-all", {"config": given}) is given
    assert resolve("nowhere/at-all", {"config": llama}).model_type == "llama"


def test_a_subfolder(llama, tmp_path):
    assert resolve(str(tmp_path), {"subfolder": "llama"}).model_type == "llama"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (SimpleNamespace(model_init_kwargs=None), {}),
        (SimpleNamespace(model_init_kwargs=None, trust_remote_code=True), {"trust_remote_code": True}),
        (
            SimpleNamespace(model_init_kwargs={"trust_remote_code": False, "revision": "r"}, trust_remote_code=True),
            {"trust_remote_code": False, "revision": "r"},
        ),
    ],
    ids=["no such field", "a default", "overruled"],
)
def test_trusting_code_is_a_default_where_trl_has_it(args, expected):
    before = dict(args.model_init_kwargs or {})
    assert init_kwargs(args) == expected
    assert (args.model_init_kwargs or {}) == before


def test_code_of_its_own_is_not_run_unless_trusted(remote, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked at the terminal"))
    assert imagine(remote, asked()) is None
    with pytest.raises(ValueError, match="trust_remote_code"):
        resolve(remote, {})


@pytest.mark.parametrize("trust", [{"trust_remote_code": True}, {"model_init_kwargs": {"trust_remote_code": True}}])
def test_code_of_its_own_with_a_recurrence_is_known_early(remote, caplog, trust):
    foresee(remote, asked(**trust))
    assert "[unsupported-mixer]" in caplog.text
    assert "AcmeScan" in caplog.text


def private(*_, **__):
    raise OSError("a/b is not a local folder and is not a valid model identifier; pass a token")


def gated(*_, **__):
    response = SimpleNamespace(headers={}, request=None, status_code=403)
    error = hub_errors.GatedRepoError.__new__(hub_errors.GatedRepoError)
    error.response = response
    raise error


def crash(*_, **__):
    raise RuntimeError("anything")


@pytest.mark.parametrize("fails", [private, gated, crash])
def test_no_access_is_unknown(monkeypatch, fails, caplog):
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fails)
    assert imagine("a/b", asked()) is None
    foresee("a/b", asked())
    assert not caplog.records


def test_an_offline_miss_is_unknown(caplog):
    with caplog.at_level(logging.WARNING):
        foresee("nobody/has-this-model", asked())
    assert not [record for record in caplog.records if record.name == "patcher"]


@pytest.mark.parametrize(
    "content",
    ["{", "[]", "null", "{}", '{"model_type": "no-such-type"}', '{"model_type": 3}', '{"model_type": "llama"}', "\x00"],
)
def test_a_broken_config_is_unknown(tmp_path, content, monkeypatch):
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "raise")
    (tmp_path / "config.json").write_text(content)
    foresee(str(tmp_path), asked())


def test_a_config_in_the_file_of_the_weights_is_unknown(llama):
    assert imagine(llama, asked(model_init_kwargs={"gguf_file": "model.gguf"})) is None


def test_an_encoder_decoder_is_known_early(tmp_path, caplog):
    made = tiny_encoder_decoder().config
    made.architectures = ["T5ForConditionalGeneration"]
    name = folder_of(made, tmp_path)
    foresee(name, asked())
    assert "[encoder-decoder]" in caplog.text


def test_a_composite_config_goes_by_its_text_model(tmp_path, caplog):
    made = transformers.Qwen3_5Config(text_config=tiny_model("qwen3_5").config.to_dict())
    made.architectures = ["Qwen3_5ForConditionalGeneration"]
    foresee(folder_of(made, tmp_path), asked())
    assert not caplog.records
    assert imagine(str(tmp_path), asked()).config.get_text_config().model_type == "qwen3_5_text"


def test_raised_before_any_weight_is_read(tmp_path, monkeypatch):
    name = folder_of(tiny_model("minimax").config, tmp_path)
    monkeypatch.setenv("PATCHER_ON_UNSAFE", "raise")
    with pytest.raises(PackingRefusedError, match="unsupported-mixer"):
        foresee(name, asked())


def test_rows_packed_beforehand_are_refused_early(llama):
    with pytest.raises(PackingRefusedError, match="prepared-twice"):
        foresee(llama, asked(), train_dataset=packed_rows(token_documents([3, 4])))


def test_who_asks_for_nothing_resolves_nothing(llama, monkeypatch):
    monkeypatch.setattr(strings, "resolve", lambda *_: pytest.fail("resolved"))
    foresee(llama, asked(packing=False), train_dataset=Dataset.from_dict({"input_ids": [[1]]}))
    foresee(tiny_llama(), asked())


def test_random_states_are_left_alone(llama, monkeypatch):
    """Code of a model's own may draw numbers when it is built."""

    def drawing(*_):
        draws()
        return build(*_)

    monkeypatch.setattr(strings, "build", drawing)

    def draws():
        return random.random(), np.random.rand(), float(torch.rand(1))

    def seed():
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)

    seed()
    expected = draws()
    seed()
    assert imagine(llama, asked()) is not None
    assert draws() == expected


class TestThroughTheTrainer:
    @pytest.fixture(autouse=True)
    def _installed(self):
        patcher.install()
        yield
        detach_all()
        patcher.uninstall()

    @pytest.fixture
    def saved(self, tmp_path):
        def save(model):
            model.save_pretrained(tmp_path)
            tiny_tokenizer().save_pretrained(tmp_path)
            return str(tmp_path)

        return save

    def test_a_hybrid_by_its_name_is_packed(self, saved):
        built = trainer(saved(tiny_model("qwen3_5")), rows_of_documents(token_documents([20, 30])), packing=True)
        assert runtime_of(built.model) is not None
        assert built.padding_free

    def test_the_weights_of_an_unsafe_model_are_not_read(self, saved, monkeypatch):
        name = saved(tiny_model("minimax"))
        monkeypatch.setenv("PATCHER_ON_UNSAFE", "raise")
        monkeypatch.setattr(
            transformers.PreTrainedModel, "from_pretrained", lambda *_, **__: pytest.fail("the weights were read")
        )
        with pytest.raises(PackingRefusedError, match="unsupported-mixer"):
            trainer(name, rows_of_documents(token_documents([20, 30])), packing=True)

    def test_one_warning_for_both_looks(self, saved, caplog):
        built = trainer(saved(tiny_model("minimax")), rows_of_documents(token_documents([20, 30])), packing=True)
        assert len([record for record in caplog.records if record.name == "patcher"]) == 1
        assert not built.args.packing

    def test_what_was_unknown_is_decided_on_the_real_model(self, saved, monkeypatch, caplog):
        monkeypatch.setattr(strings, "resolve", private)
        trainer(saved(tiny_model("minimax")), rows_of_documents(token_documents([20, 30])), packing=True)
        assert "[unsupported-mixer]" in caplog.text

    def test_the_name_and_the_settings_are_passed_by_position(self, saved):
        from trl import SFTTrainer

        name = saved(tiny_model("qwen3_5"))
        built = SFTTrainer(name, config(packing=True), None, rows_of_documents(token_documents([20, 30])))
        assert runtime_of(built.model) is not None
