import pytest
import torch

from replacements.kernels.delta_rule.cost import Counts, Rates, delta_rule_plan
from replacements.kernels.segments import Segments
from tests.support.kernels import ROWS, random_lengths

CPU = torch.device("cpu")


@pytest.mark.parametrize("layout", ["aligned", "shared", "row"])
@pytest.mark.parametrize("size", [1, 8, 64])
@pytest.mark.parametrize("lengths", [*ROWS.values(), random_lengths(300, 40), [64, 64, 1]])
def test_counts_are_those_of_the_plan(lengths, size, layout):
    segments = Segments(lengths)
    plan = segments.chunks(size, CPU, layout)
    assert Counts.of(segments, size, layout) == Counts(plan.count, plan.links, len(plan.steps))


def test_tiny_documents_get_chunks_without_links():
    plan = delta_rule_plan(Segments([3] * 5000), CPU, 64, 64, 8)
    assert plan.size == 16
    assert plan.links == 0


@pytest.mark.parametrize("lengths", [[1] * 10_000, [4096], [65_536], random_lengths(45, 180), random_lengths(400, 20)])
@pytest.mark.parametrize("channels", [False, True])
def test_never_wastes_more_than_half_the_slots(lengths, channels):
    plan = delta_rule_plan(Segments(lengths), CPU, 64, 64, 8, channels)
    assert plan.count * plan.size <= 2 * sum(lengths) + plan.size


def test_chosen_once():
    segments = Segments([5, 100])
    assert delta_rule_plan(segments, CPU, 64, 64, 8) is delta_rule_plan(segments, CPU, 64, 64, 8)


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        ("slot", 2 * (3 * 8) * 5),
        ("level", 2 * (3 * 8) * 5 * 3),
        ("pair", 2 * (3 * 8 * 8)),
        ("pair_product", 2 * (3 * 8 * 8) * 5),
        ("state", 2 * 7 * (4 * 6)),
        ("state_product", 2 * 7 * (4 * 6) * 8),
        ("step", 9),
    ],
)
def test_what_each_rate_multiplies(rate, wanted):
    """Three chunks of 8 slots, seven links in nine steps, two heads with states of 4 by 6 numbers."""
    zero = dict.fromkeys(("slot", "level", "pair", "pair_product", "state", "state_product", "step"), 0.0)
    rates = Rates(**(zero | {rate: 1.0}), sizes=())
    assert rates.cost(Counts(3, 7, 9), size=8, key=4, value=6, heads=2, channels=True) == wanted
