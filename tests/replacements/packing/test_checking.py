"""A check agrees with the census, names the layers that leak, and refuses what is no model in one line."""

import json
from pathlib import Path

import pytest
import torch
import transformers

import patcher
from replacements.packing.checking import CannotCheckError, check, depth, judged, memory, rows, sizes, source
from replacements.packing.checking.kinds import EMBEDDING
from replacements.packing.checking.small import small_model
from replacements.packing.checking.speed import backends_of
from replacements.packing.measuring import log_probs, packed_row
from replacements.packing.runtime import attach, runtime_of
from tests.support.models import FAMILIES, families, tiny_model
from tests.support.situations import tiny_encoder_decoder, tiny_llama, with_recurrence


def saved_config(family, folder, **changes):
    config = tiny_model(family).config
    config.architectures = [FAMILIES[family]["model_class"]]
    config.update(changes)
    config.save_pretrained(folder)
    return folder / "config.json"


def census():
    """What the census recorded of this transformers, patched: family to outcomes; empty for one it did not take."""
    rows = json.loads((Path(__file__).parents[3] / "tools" / "results" / "census.json").read_text("utf-8"))
    found = {}
    for row in rows:
        if row["patched"] and row["transformers"] == transformers.__version__:
            found.setdefault(row["family"], set()).add(row["result"])
    return found


@pytest.mark.parametrize(("family", "outcomes"), census().items())
def test_the_verdict_is_that_of_the_census(family, outcomes, tmp_path):
    assert check(saved_config(family, tmp_path)).packs == ("padded" not in outcomes)


@pytest.mark.parametrize("family", families())
def test_the_verdict_is_that_of_the_whole_model(family, tmp_path):
    of_the_whole = judged(tiny_model(family))
    report = check(saved_config(family, tmp_path))
    assert (report.verdict.action, report.verdict.reason) == (of_the_whole.action, of_the_whole.reason)
    if not report.packs:
        assert any(kind.isolated[0] is False for kind in report.kinds)
        return
    assert report.stock > 0.05
    assert report.patched == 0
    leaking = [kind for kind in report.kinds if kind.isolated[0] is False]
    assert leaking
    assert all(kind.isolated[1] for kind in report.kinds)
    wanted = tiny_model(family)
    counted = {type(part).__name__ for layer in depth.decoder_layers(wanted) for part in layer.modules()}
    assert {kind.name for kind in report.kinds} <= counted


@pytest.mark.parametrize(("family", "packs"), [("glm5_next", False), ("qwen3_5", True)])
def test_a_decoder_without_a_head_is_judged_as_one_with_it(family, packs, tmp_path):
    whole = tiny_model(family)
    decoder = next(m for m in whole.modules() if m.__class__.__name__.endswith("TextModel"))
    config = decoder.config
    config.architectures = [type(decoder).__name__]
    config.save_pretrained(tmp_path)
    report = check(tmp_path)
    assert report.built == type(decoder).__name__
    assert (report.verdict.action, report.verdict.reason) == (judged(whole).action, judged(whole).reason)
    assert report.packs == packs
    assert "no language-model head" in report.notes[0]


def test_attention_that_leaks_is_told_from_the_mixers():
    kinds = {kind.name: kind.isolated for kind in check(tiny_model("granitemoehybrid")).kinds}
    assert kinds == {"GraniteMoeHybridMambaLayer": (False, True), "GraniteMoeHybridAttention": (False, True)}
    kinds = {kind.name: kind.isolated for kind in check(tiny_model("jamba")).kinds}
    assert kinds == {"JambaMambaMixer": (False, True), "JambaAttention": (True, True)}


def test_an_unnamed_leak_is_found_where_it_is():
    report = check(with_recurrence(tiny_llama()))
    assert not report.packs
    assert {kind.name for kind in report.kinds if kind.isolated[1] is False} == {"RunningMean"}
    assert report.patched > 1e-3


def test_a_leak_of_the_embedding_is_not_blamed_on_the_layers():
    model = tiny_llama()
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: output + output.cumsum(1) / 10)
    report = check(model)
    assert not report.packs
    assert {kind.name for kind in report.kinds if kind.isolated[0] is False} == {EMBEDDING}


def test_what_leaks_is_still_felt_thirty_tokens_later():
    """A state that forgets within a few tokens would hide a leak that only shows behind them."""
    model = small_model(tiny_model("mamba2").config).model
    sample = rows.Rows.of(model)
    with torch.no_grad():
        one, other = (log_probs(model, packed_row(two, seq_idx=False)) for two in (sample.row, sample.neighbour))
    assert (one[-1] - other[-1]).abs().max() > 0.1


def test_attention_alone_needs_no_patch():
    report = check(tiny_llama())
    assert report.packs
    assert "with the patch and without it" in report.sentence
    assert [kind.isolated for kind in report.kinds] == [(True, True)]


def test_a_model_that_cannot_be_run_is_not_called_safe():
    report = check(tiny_model("qwen3_5").to("meta"))
    assert report.stock is report.patched is None
    assert "was not tried" in report.sentence
    assert report.notes == ("The model was not run: its weights are on the meta device.",)


def test_weights_that_a_forward_would_repack_are_not_run():
    model = tiny_model("qwen3_5")
    next(model.parameters()).quant_state = object()
    model.register_forward_pre_hook(lambda module, args: pytest.fail("it ran"))
    assert "repacked" in check(model).notes[0]


def test_an_encoder_decoder():
    assert check(tiny_encoder_decoder()).to_dict()["reason"] == "encoder-decoder"


def test_a_model_is_left_as_it_was():
    model = tiny_model("qwen3_5").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    patcher.check(model)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert runtime_of(model) is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_packed_model_is_seen_without_its_runtime():
    model = tiny_model("qwen3_5")
    attach(model)
    hooks = [list(module._forward_pre_hooks.values()) for module in model.modules()]
    try:
        assert check(model).stock > 0.1
        assert [list(module._forward_pre_hooks.values()) for module in model.modules()] == hooks
    finally:
        patcher.uninstall()


def test_weights_are_used_where_they_are(tmp_path):
    tiny_model("qwen3_5").save_pretrained(tmp_path)
    assert check(tmp_path).weights == "its own"
    assert check(tmp_path, weights=False).weights == "random, small"


def cached(hub, *, without=()):
    """A model in a cache of the hub, its weights in two shards."""
    snapshot = hub / "models--some--model" / "snapshots" / ("0" * 40)
    tiny_model("qwen3_5").save_pretrained(snapshot, max_shard_size="100KB")
    (hub / "models--some--model" / "refs").mkdir()
    (hub / "models--some--model" / "refs" / "main").write_text("0" * 40)
    shards = sorted(snapshot.glob("*.safetensors"))
    assert len(shards) > 1
    for number in without:
        shards[number].unlink()
    return sum(shard.stat().st_size for shard in snapshot.glob("*.safetensors"))


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def test_weights_in_the_cache_of_the_hub_are_counted_and_used(hub):
    size = cached(hub)
    assert source.find("some/model").bytes_of_weights == size > 0
    assert check("some/model").weights == "its own"


def test_weights_that_came_in_part_are_no_weights(hub):
    cached(hub, without=[1])
    assert source.find("some/model").weights is None
    assert check("some/model").weights == "random, small"


def test_files_that_are_not_read_are_not_counted(tmp_path):
    tiny_model("lfm2").save_pretrained(tmp_path)
    size = source.find(tmp_path).bytes_of_weights
    (tmp_path / "pytorch_model.bin").write_bytes(b"0" * 1000)
    assert source.find(tmp_path).bytes_of_weights == size


def test_weights_that_do_not_fit_are_not_loaded(hub, monkeypatch):
    size = cached(hub)
    monkeypatch.setattr(memory, "free", lambda: size)
    report = check("some/model")
    assert report.weights == "random, small"
    assert "stands for the weights: they need" in report.notes[0]
    monkeypatch.setattr(memory, "free", lambda: 1.2 * size)
    assert check("some/model").weights == "its own"


def test_weights_that_cannot_be_run_are_stood_for(tmp_path, monkeypatch):
    tiny_model("qwen3_5").save_pretrained(tmp_path)
    monkeypatch.setattr(source.Source, "load", lambda self, trust_remote_code: tiny_model("qwen3_5").to("meta"))
    report = check(tmp_path)
    assert report.patched == 0
    assert "stands for the weights: its weights are on the meta device" in report.notes[0]


def test_a_container_ends_before_the_memory_of_its_host(tmp_path, monkeypatch):
    group = [tmp_path / name for name in ("memory.max", "memory.current")]
    monkeypatch.setattr(memory, "_GROUPS", ((*map(str, group), "inactive_file"),))
    host = memory.free()
    for path, value in zip(group, (9_000_000, 5_000_000), strict=True):
        path.write_text(f"{value}\n")
    (tmp_path / "memory.stat").write_text("anon 1000000\ninactive_file 3000000\n")
    assert memory.free() == 7_000_000 < host
    group[0].write_text("max\n")
    assert memory.free() > 7_000_000


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_next", "jamba", "kimi_linear", "zamba2"])
def test_models_of_full_size_are_cut_and_keep_every_kind_of_layer(family):
    config = getattr(transformers, FAMILIES[family]["config_class"])()
    small = small_model(config)
    assert sum(p.numel() for p in small.model.parameters()) < 20e6
    assert small.layers == config.num_hidden_layers
    kept = {type(part).__name__ for layer in depth.decoder_layers(small.model) for part in layer.modules()}
    assert kept == set(small.modules)


def test_a_vision_language_model_is_cut_as_a_whole():
    config = transformers.Qwen3_5Config(architectures=["Qwen3_5ForConditionalGeneration"])
    small = small_model(config)
    assert type(small.model).__name__ == "Qwen3_5ForConditionalGeneration"
    assert sum(p.numel() for p in small.model.parameters()) < 100e6
    assert check(small.model).packs


def test_leading_layers_until_every_kind_was_seen():
    assert list(depth.enough(["a", "a", "b", "a", "c", "a", "b"])) == [5, 7]
    assert list(depth.enough(["a", "a", "a"])) == [1, 2, 3]


def test_token_ids_stay_inside_the_cut_vocabulary_and_apart():
    config = {"vocab_size": 100_000, "hidden_size": 256, "eos_token_id": [99_999, 7], "image_token_id": 99_998}
    small = sizes.cut(config, None, 4)
    ids = [*small["eos_token_id"], small["image_token_id"]]
    assert len(set(ids)) == 3
    assert all(0 <= token < small["vocab_size"] for token in ids)
    assert small["eos_token_id"][1] == 7


@pytest.mark.parametrize("f", sizes.factors({"hidden_size": 4096, "num_attention_heads": 40, "num_experts": 8})[:3])
def test_factors_divide_what_is_tied(f):
    assert f == 1 or (4096 % f == 0 and 40 % f == 0)


def wrong(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')
    whole = saved_config("qwen3_5", tmp_path).read_text()
    files = {"truncated": whole[:200], "list": "[]", "other": '{"a": 1}', "unknown": '{"model_type": "nobody"}'}
    files["vision"] = '{"model_type": "vit"}'
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)))
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(content)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/folder/x", "no such file or folder"),
        ("missing.json", "no such file or folder"),
        ("empty", "has no config.json"),
        ("adapter", "patcher check some/base"),
        ("truncated.json", r"not complete JSON \(line"),
        ("list.json", "no model's config"),
        ("other.json", "no model_type"),
        ("unknown.json", "does not know the model type"),
        ("vision.json", "not that of a language model"),
        ("model.safetensors", "holds weights without a config; try: patcher check .*[^s]$"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path, name, said):
    wrong(tmp_path)
    with pytest.raises(CannotCheckError, match=said) as raised:
        check(tmp_path / name)
    assert "\n" not in str(raised.value)
    assert "; try: " in str(raised.value)


def test_a_hub_id_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CannotCheckError, match="HF_HUB_OFFLINE is set"):
        source.find("nobody/has-this-model")


def test_a_hub_id_that_cannot_be_reached(monkeypatch):
    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(CannotCheckError, match="cannot be reached"):
        source.find("nobody/has-this-model")


def test_what_to_install():
    used, install = backends_of(["causal_conv1d", "gated_delta_rule", "ssd"], "cpu")
    assert [backend.backend for backend in used] == ["torch"] * 3
    assert install in (["flash-linear-attention", "mamba-ssm"], ["mamba-ssm"], ["flash-linear-attention"], [])


def test_json():
    json.dumps(check(tiny_model("qwen3_5")).to_dict(), allow_nan=False)
