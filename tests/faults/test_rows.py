"""Rows whose boundaries were lost, doubled or invented elsewhere."""

import pytest
import torch

from replacements.kernels.segments import Segments
from replacements.packing.boundaries import BoundaryError
from replacements.packing.runtime import attach, runtime_of
from tests.support.models import (
    gradients,
    log_probs,
    log_probs_apart,
    packed_row,
    relative_error,
    summed_loss,
    tiny_model,
    token_documents,
)
from tests.support.sft import HYBRID, apart, rows_of_documents, step, trainer

DOCUMENTS = token_documents([23, 1, 1, 1, 70, 5])
ROW = packed_row(DOCUMENTS)
CUMULATIVE = torch.tensor([0, 23, 24, 25, 26, 96, 101], dtype=torch.int32)


@pytest.fixture
def model():
    return tiny_model(HYBRID)


def packed_equals_apart(model, row, documents=DOCUMENTS):
    with torch.no_grad():
        expected = log_probs_apart(model, documents)
        attach(model)
        packed = log_probs(model, **row)
    return (packed[: len(expected)] - expected).abs().max() <= 1e-4


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.parametrize(
    "boundaries",
    [
        {"seq_idx": ROW["seq_idx"]},
        {"cu_seq_lens_q": CUMULATIVE, "cu_seq_lens_k": CUMULATIVE},
        {"cu_seqlens": CUMULATIVE},
        {"packed_seq_lengths": CUMULATIVE.diff()},
        {"position_ids": ROW["position_ids"]},
    ],
    ids=lambda boundaries: next(iter(boundaries)),
)
def test_boundaries_given_in_any_form_are_applied(model, boundaries):
    """Boundaries were given and silently filtered out, because the fallback in torch does not name them."""
    assert packed_equals_apart(model, {"input_ids": ROW["input_ids"], **boundaries})


def test_documents_of_one_token(model):
    """Position 0 followed by position 0 was taken for one document."""
    documents = token_documents([1, 1, 1, 6, 1])
    assert packed_equals_apart(model, without(packed_row(documents), "seq_idx"), documents)


@pytest.mark.parametrize("first", [0, 2])
def test_positions_that_start_anywhere(model, first):
    """A boundary was invented in a row of one document whose positions start at 2."""
    row = {"input_ids": ROW["input_ids"], "position_ids": torch.arange(101)[None] + first}
    with torch.no_grad():
        stock = log_probs(model, **row)
        attach(model)
        assert torch.equal(log_probs(model, **row), stock)
    assert runtime_of(model).packed_forwards == 0


@pytest.mark.parametrize("planes", [3, 4])
def test_planes_of_multimodal_rope(model, planes):
    """Stacked planes of positions were read as three or four times the tokens."""
    if HYBRID != "qwen3_5":
        pytest.skip("the hybrid of this transformers has no multimodal rope")
    stacked = ROW["position_ids"].expand(planes, 1, -1)
    assert packed_equals_apart(model, {"input_ids": ROW["input_ids"], "position_ids": stacked})


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_a_mask_of_ones(model, dtype):
    """A mask of ones, added by a library in between, cancelled the detection of packing."""
    ones = torch.ones(1, 101, dtype=dtype)
    assert packed_equals_apart(model, {**without(ROW, "seq_idx"), "attention_mask": ones})


def test_the_explicit_boundary_wins(model):
    """Boundaries derived from a mask overwrote the caller's own."""
    padded = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in ROW.items()}
    padded["seq_idx"][0, 101:] = 6
    mask = torch.ones(1, 104)
    mask[0, 101:] = 0
    assert packed_equals_apart(model, {**padded, "attention_mask": mask})


def test_a_mask_that_hides_tokens_in_front_is_refused(model):
    """Left padding of a packed row cannot be honoured, and is not ignored."""
    attach(model)
    mask = torch.ones(1, 101)
    mask[0, 30:33] = 0
    with pytest.raises(BoundaryError, match="padding_side"):
        log_probs(model, **ROW, attention_mask=mask)


def test_padding_to_a_multiple_is_one_segment(model):
    """Padding with position 0 became many documents of one token, and their number grew with the padding."""
    loss, expected = apart(model, DOCUMENTS)
    built = trainer(model, rows_of_documents(DOCUMENTS), packing=True, pad_to_multiple_of=256)
    batch = next(iter(built.get_train_dataloader()))
    assert batch["input_ids"].shape == (1, 256)
    assert batch["seq_idx"].unique().numel() == len(DOCUMENTS) + 1
    assert (batch["labels"][0, 101:] == -100).all()
    got, found = step(built)
    assert abs(got - loss) <= 1e-5
    assert relative_error(found, expected) <= 1e-4


def test_boundaries_that_end_before_the_row(model):
    """Rows past the last boundary gave gradients that are not numbers."""
    attach(model)
    short = {"input_ids": ROW["input_ids"], "cu_seq_lens_q": CUMULATIVE[:-1]}
    log_probs(model, **short).square().mean().backward()
    assert all(gradient.isfinite().all() for gradient in gradients(model).values())
    assert packed_equals_apart(model, short)


def test_documents_of_no_token(model):
    """A length of zero put two boundaries in one place."""
    doubled = torch.tensor([0, 0, 23, 24, 25, 25, 26, 96, 101, 101], dtype=torch.int32)
    assert packed_equals_apart(model, {"input_ids": ROW["input_ids"], "cu_seq_lens_q": doubled})


def test_two_packed_rows_in_a_batch(model):
    """Gradients of the convolution were corrupt with more than one row."""
    several = [token_documents([20, 44], seed=1), token_documents([50, 13, 1], seed=2)]
    for documents in several:
        for document in documents:
            if len(document) > 1:
                summed_loss(log_probs(model, input_ids=document[None]), [document]).backward()
    expected = gradients(model)
    attach(model)
    rows = [packed_row(documents) for documents in several]
    batch = {name: torch.cat([row[name] for row in rows]) for name in ("input_ids", "position_ids", "seq_idx")}
    packed = model(**batch).logits.log_softmax(-1)
    sum(summed_loss(row, documents) for row, documents in zip(packed, several, strict=True)).backward()
    assert relative_error(gradients(model), expected) <= 1e-4


def test_a_plain_row_after_a_packed_one(model):
    """Boundaries of the last packed row were still set when a plain row came."""
    plain = token_documents([40], seed=7)[0][None]
    with torch.no_grad():
        stock = model(input_ids=plain).logits
        attach(model)
        log_probs(model, **ROW)
        assert torch.equal(model(input_ids=plain).logits, stock)


def test_a_backbone_called_directly(model):
    """The chunked loss calls the backbone, and a wrapper on the model's forward never ran."""
    with torch.no_grad():
        expected = log_probs_apart(model, DOCUMENTS)
        attach(model)
        hidden = model.model(**without(ROW, "labels")).last_hidden_state
        packed = model.lm_head(hidden)[0].log_softmax(-1)
    assert (packed - expected).abs().max() <= 1e-4


def test_a_cache_left_on(model):
    """A cache was filled with the state of several documents."""
    attach(model)
    with torch.no_grad():
        output = model(**without(ROW, "labels"), use_cache=True)
    assert output.past_key_values is None


def test_rows_beyond_32_bits():
    """Offsets of very long rows overflowed."""
    with pytest.raises(ValueError, match=r"int32|2147483647|2,147,483,647"):
        Segments([2**31 - 1, 2])
