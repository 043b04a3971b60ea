"""What the demo measures must tell a leak from rounding: here on the stock model, which leaks."""

import pytest
import torch

import patcher
from patcher.cli.demo import isolation, model
from patcher.cli.demo.settings import LIMIT, Settings

LENGTHS = [40, 1, 9, 30]


@pytest.fixture
def stock():
    class Tokenizer:
        pad_token_id, eos_token_id = 0, 1

        def __len__(self):
            return 64

    patcher.uninstall()
    yield model.build(Tokenizer(), Settings(hidden=64, feed_forward=64, context=128))
    patcher.install()


@pytest.fixture
def row():
    ids = torch.randint(2, 64, (sum(LENGTHS),), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids.tolist(), "seq_lengths": LENGTHS}


def batch(row, **more):
    positions = torch.cat([torch.arange(length) for length in row["seq_lengths"]])
    return {"input_ids": torch.tensor([row["input_ids"]]), "position_ids": positions[None], **more}


def test_the_first_document_of_a_row_cannot_be_moved_and_the_others_are(stock, row):
    outcome = isolation.measure(stock, [batch(row)], isolation.alone(stock, [row]))
    ((first, *others),) = outcome.delta
    assert first < LIMIT
    assert all(value > 10 * LIMIT for value in others)
    assert outcome.largest == max(others)


def test_documents_that_are_alone_do_not_differ_from_themselves(stock, row):
    single = {"input_ids": row["input_ids"], "seq_lengths": [sum(LENGTHS)]}
    outcome = isolation.measure(stock, [batch(single)], isolation.alone(stock, [single]))
    assert outcome.largest < LIMIT


def test_what_is_not_a_number_is_not_isolated():
    broken = torch.tensor([[0.0, torch.nan], [0.0, 0.0]])
    outcome = isolation.compare([broken], [[torch.zeros(1, 2), torch.zeros(1, 2)]])
    assert outcome.delta == [[torch.inf, 0.0]]
    assert outcome.largest == torch.inf


def test_measuring_leaves_a_model_in_training(stock, row):
    stock.train()
    isolation.measure(stock, [batch(row)], isolation.alone(stock, [row]))
    assert all(module.training for module in stock.modules())


def test_a_refusal_is_kept_as_one_line(row):
    class Refuses(torch.nn.Module):
        def forward(self, **_):
            raise ValueError("cannot\n  keep apart")

    outcome = isolation.measure(Refuses(), [batch(row)], [[torch.zeros(1, 1)]])
    assert outcome.delta is None
    assert outcome.error == "ValueError: cannot keep apart"
    assert outcome.largest is None


def test_only_positions_leaves_no_other_trace(row):
    left = isolation.only_positions(batch(row, seq_idx=torch.zeros(1, 80), cu_seq_lens_q=torch.zeros(5)))
    assert sorted(left) == ["input_ids", "position_ids"]


def test_heads_remember_for_as_long_as_they_are_drawn_to(stock):
    mixer = stock.model.layers[0].linear_attn
    rate = mixer.A_log.exp() * torch.nn.functional.softplus(mixer.dt_bias)
    half_lives = torch.log(torch.tensor(2.0)) / rate
    torch.testing.assert_close(half_lives, torch.tensor(model.HALF_LIVES, dtype=torch.float32))
