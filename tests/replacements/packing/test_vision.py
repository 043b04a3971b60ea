"""Vision-language models: text packs where TRL lets it, images train padded, streams are not read to find out."""

import logging

import pytest
import torch
import transformers
from datasets import Dataset

import patcher
from replacements.packing import rules
from replacements.packing.runtime import attach, detach_all, runtime_of
from tests.support.models import log_probs, log_probs_apart, packed_row, redraw, relative_error, token_documents
from tests.support.models import tiny_model as text_model
from tests.support.sft import apart, rows_of_documents, step, stream, trainer
from tests.support.training import tiny_tokenizer

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "Qwen3_5ForConditionalGeneration"), reason="needs a vision-language hybrid"
)
DOCUMENTS = token_documents([23, 1, 70, 5, 40], vocab=100)


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr("patcher._log._said", set())
    patcher.install()
    yield
    detach_all()
    patcher.uninstall()


@pytest.fixture
def model():
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 16,
    }
    marks = {"image_token_id": 120, "video_token_id": 121, "vision_start_token_id": 122, "vision_end_token_id": 123}
    text = text_model("qwen3_5").config.to_dict()
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **marks)
    return redraw(transformers.Qwen3_5ForConditionalGeneration(config))


def assert_one_step_is_right(model, built):
    runtime = runtime_of(model)
    assert runtime is not None
    loss, found = step(built)
    assert runtime.packed_forwards == 1
    runtime.detach()
    expected_loss, expected = apart(model, DOCUMENTS)
    assert abs(loss - expected_loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


def test_text_packs(model):
    assert_one_step_is_right(model, trainer(model, rows_of_documents(DOCUMENTS), packing=True))


def test_text_packs_in_several_evaluation_sets(model):
    sets = {"one": rows_of_documents(DOCUMENTS), "two": rows_of_documents(DOCUMENTS[:3])}
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, eval_dataset=sets)
    found = built.evaluate()
    runtime_of(model).detach()
    for name, documents in (("one", DOCUMENTS), ("two", DOCUMENTS[:3])):
        assert abs(found[f"eval_{name}_loss"] - apart(model, documents)[0]) <= 1e-4


class TextProcessor(transformers.ProcessorMixin):
    """A processor as TRL tells one: images would need torchvision, and no image is read here."""

    attributes = ("tokenizer",)
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer=None):
        super().__init__(tokenizer)


@pytest.fixture
def processor():
    return TextProcessor(tiny_tokenizer())


def test_text_with_a_processor(model, processor, caplog):
    """Packs where TRL asks the dataset; where it needs a tokenizer it trains padded and says what to pass."""
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, processing_class=processor)
    if rules._trl_needs_tokenizer():
        assert "[processor]" in caplog.text
        assert not built.args.packing
    else:
        assert_one_step_is_right(model, built)


@pytest.mark.parametrize("planes", [3, 4])
@pytest.mark.parametrize("first_plane_alone", [True, False])
def test_planes_of_positions(model, planes, first_plane_alone):
    """Time, height and width, with or without the plane of the text in front."""
    with torch.no_grad():
        expected = log_probs_apart(model, DOCUMENTS)
        attach(model)
        row = packed_row(DOCUMENTS, seq_idx=False)
        stacked = row["position_ids"].expand(planes, 1, -1).clone()
        rows = {"input_ids": row["input_ids"], "position_ids": stacked}
        if not first_plane_alone:
            rows["attention_mask"] = torch.ones_like(row["input_ids"])
        packed = log_probs(model, **rows)
    assert (packed - expected).abs().max() <= 1e-4


def test_a_dataset_of_images_is_not_packed(model, processor, caplog):
    """TRL refuses to pack it; here it trains padded and says why."""
    data = Dataset.from_dict({"prompt": ["w5"], "completion": ["w6"], "images": [[]]})
    with caplog.at_level(logging.WARNING, logger="patcher"):
        built = trainer(model, data, packing=True, processing_class=processor, max_length=None)
    assert "[vision-data]" in caplog.text
    assert not built.args.packing


def test_a_stream_that_may_hold_images_is_not_packed(model, caplog):
    trainer(model, stream(rows_of_documents(DOCUMENTS), known=False), packing=True)
    assert "[unknown-stream]" in caplog.text


def test_a_stream_of_text_packs(model):
    assert_one_step_is_right(model, trainer(model, stream(rows_of_documents(DOCUMENTS)), packing=True))


def test_a_row_with_an_image_is_one_document(model):
    """Its positions stand still in the image, which was taken for as many documents of one token."""
    ids = torch.cat([DOCUMENTS[0], torch.full((4,), 120), DOCUMENTS[3]])
    time = torch.cat([torch.arange(23), torch.full((4,), 23), torch.arange(25, 30)])
    planes = time.expand(3, 1, -1).clone()
    planes[1, 0, 25:27] += 1
    planes[2, 0, [24, 26]] += 1
    row = {"inputs_embeds": model.get_input_embeddings()(ids)[None], "position_ids": planes}
    with torch.no_grad():
        stock = model(**row).logits
        runtime = attach(model)
        assert torch.equal(model(**row).logits, stock)
    assert runtime.packed_forwards == 0
