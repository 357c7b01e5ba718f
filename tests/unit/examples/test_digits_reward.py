"""The reward of the custom reward example pays near misses, by name and by dotted path."""

import pytest

from examples.custom_reward.digits_reward import DigitsReward
from trinity.plugins import REWARDS


@pytest.mark.parametrize(
    ("response", "total"), [("46", 1.0), (" 46 ", 1.0), ("45", 0.1), ("146", 0.0), ("", 0.0)]
)
def test_a_near_miss_earns_less_than_the_answer_and_more_than_nonsense(
    response: str, total: float
) -> None:
    parts = DigitsReward(digits_weight=0.2)(response=response, truth="46")
    assert sum(parts.values()) == pytest.approx(total)


def test_the_dotted_path_of_the_example_leads_to_the_reward() -> None:
    assert REWARDS.get("examples.custom_reward.digits_reward.DigitsReward") is DigitsReward
