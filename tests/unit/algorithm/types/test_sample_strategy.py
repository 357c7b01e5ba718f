"""What a sample strategy asks of a batch."""

import pytest

from trinity.algorithm.sampling import SAMPLE_STRATEGIES, SampleStrategy
from trinity.errors import UserError
from trinity.types import JsonObject


def strategy(name: str, **arguments: object) -> SampleStrategy:
    return SAMPLE_STRATEGIES.get(name)(**arguments)


def test_usually_a_batch_is_what_the_explorer_makes() -> None:
    assert strategy("default") == strategy("warmup") == SampleStrategy()
    assert SampleStrategy().expert_buffer is None


def test_staleness_is_bounded_where_a_bound_is_given() -> None:
    assert strategy("staleness_control").max_staleness is None
    assert strategy("staleness_control", max_staleness=4).max_staleness == 4
    assert strategy("mix").max_staleness is None
    both = strategy("mix", max_staleness=4)
    assert (both.max_staleness, both.expert_buffer) == (4, "sft_dataset")


def test_mixing_names_a_share_and_where_it_comes_from() -> None:
    mixed = strategy("mix")
    assert (mixed.expert_data_ratio, mixed.expert_buffer) == (0.5, "sft_dataset")
    assert strategy("mix", sft_dataset_name="mine").expert_buffer == "mine"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("staleness_control", {"max_staleness": -1}),
        ("mix", {"max_staleness": -1}),
        ("mix", {"staleness_unit": "rows", "max_staleness": 1}),
        ("staleness_control", {"staleness_unit": "token"}),
        ("mix", {"expert_data_ratio": 0.0}),
        ("mix", {"expert_data_ratio": 1.0}),
    ],
)
def test_numbers_that_mean_nothing_are_refused(name: str, arguments: JsonObject) -> None:
    with pytest.raises(UserError, match=next(iter(arguments))):
        strategy(name, **arguments)
