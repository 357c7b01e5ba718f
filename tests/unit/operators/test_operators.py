"""Each experience operator against what it says of itself."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.signature import read_signature
from trinity.errors import UserError
from trinity.operators import BUILT_IN, OPERATORS
from trinity.operators.dapo_dynamic_sampling import dapo_dynamic_sampling
from trinity.operators.group_mean_filter import group_mean_filter
from trinity.operators.invalid_reward_filter import invalid_reward_filter
from trinity.operators.mask_response_truncated import mask_response_truncated
from trinity.operators.overlong_penalty import overlong_penalty
from trinity.operators.pass_rate_calculator import pass_rate_calculator
from trinity.operators.reward_filter import reward_filter
from trinity.operators.reward_shaping_mapper import reward_shaping_mapper
from trinity.operators.reward_std_filter import reward_std_filter
from trinity.operators.rollouts import Changes, Rollouts
from trinity.rewards.math_dapo_reward import MathDapoReward
from trinity.runtime.json_values import JsonValue

NAN = float("nan")
PAGE = Path(__file__).parents[3] / "docs" / "operators.md"


def rollouts(*groups: list[float], **numbers: list[float]) -> Rollouts:
    arrays = {key: np.array(values) for key, values in numbers.items()}
    return Rollouts.of(Samples.of_groups(*groups), numbers=arrays)


def left_out(changes: Changes) -> list[bool]:
    assert changes.left_out is not None and changes.reason
    listed: list[bool] = changes.left_out.tolist()
    return listed


def figures(changes: Changes) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in changes.metrics.items()}


def test_every_operator_is_found_by_its_name() -> None:
    for name in OPERATORS.builtins:
        assert OPERATORS.get(name).__name__ == name


def test_reward_filter_keeps_what_reaches_the_threshold() -> None:
    assert left_out(reward_filter(rollouts([-0.1, 0.0, 0.5]))) == [True, False, False]
    assert left_out(reward_filter(rollouts([0.4, 0.5]), threshold=0.5)) == [True, False]


def test_reward_std_filter_drops_groups_that_are_flat_or_alone() -> None:
    changes = reward_std_filter(rollouts([0.1, 0.1], [0.0, 1.0], [1.0]))
    assert left_out(changes) == [True, True, False, False, True]
    assert figures(changes) == {
        "operator_filtered_count": [2.0, 0.0, 1.0],
        "origin_group_advantages/reward_mean": [0.1, 0.5, 1.0],
        "origin_group_advantages/reward_std": [0.0, 0.5, 0.0],
    }
    assert left_out(reward_std_filter(rollouts([0.0, 1.0]), threshold=0.5)) == [True, True]
    assert left_out(reward_std_filter(rollouts([0.0, 1.01]), threshold=0.5)) == [False, False]


def test_group_mean_filter_keeps_means_between_its_bounds() -> None:
    groups = [0.2, 0.2], [0.2, 0.1], [0.8, 0.9], [1.0, 0.0]
    given = rollouts(*groups, acc=[0, 0, 1, 0, NAN, NAN, 1, 1])
    changes = group_mean_filter(given, lower=0.2, upper=0.8)
    assert left_out(changes) == [False] * 2 + [True] * 4 + [False] * 2
    assert figures(changes) == {"dropped_low": [0, 1, 0, 0], "dropped_high": [0, 0, 1, 0]}
    by_number = group_mean_filter(given, metric_key="acc")
    assert left_out(by_number) == [True] * 2 + [False] * 4 + [True] * 2


def test_overlong_penalty_is_that_of_dapos_reward() -> None:
    lengths = np.array([50, 100, 110, 150, 160])
    given = Rollouts.of(Samples.of_groups([1.0] * 5), response_lengths=lengths)
    changes = overlong_penalty(given, max_response_length=150, cache_length=50, penalty_factor=0.5)
    assert changes.rewards is not None
    assert changes.rewards.tolist() == pytest.approx([1.0, 1.0, 0.9, 0.5, 0.5])
    assert figures(changes)["overlong_fraction"] == [0.6]
    reward = MathDapoReward(
        enable_overlong_penalty=True, penalty_factor=0.5, max_response_length=150, cache_length=50
    )
    parts = [reward(response="Answer: 1", truth="1", response_length=int(n)) for n in lengths]
    assert [sum(part.values()) for part in parts] == pytest.approx(changes.rewards.tolist())
    with pytest.raises(UserError, match="cache_length 0"):
        overlong_penalty(given, max_response_length=150, cache_length=0)


def test_dapo_dynamic_sampling_looks_at_the_metric_and_then_at_the_reward() -> None:
    groups = rollouts(
        [9.0, 9.0], [0.0, 0.0], [1.0, 0.0], [1.0], accuracy=[1.0, 0.0, 0.0, 0.0, NAN, NAN, NAN]
    )
    changes = dapo_dynamic_sampling(groups)
    assert left_out(changes) == [False, False, True, True, False, False, True]
    assert figures(changes) == {
        "dropped_all_correct": [0.0, 0.0, 0.0, 1.0],
        "dropped_all_wrong": [0.0, 1.0, 0.0, 0.0],
    }


def test_dapo_dynamic_sampling_has_a_threshold_and_a_key_of_ones_own() -> None:
    groups = rollouts([0.0, 0.0], solved=[0.4, 0.6])
    changes = dapo_dynamic_sampling(groups, metric_key="solved", correct_threshold=0.5)
    assert left_out(changes) == [False, False]
    assert needs_of(dapo_dynamic_sampling, {"metric_key": "solved"}).numbers == ("solved",)
    assert needs_of(dapo_dynamic_sampling, {}).numbers == ("accuracy",)


def test_mask_response_truncated_masks_and_leaves_nothing_out() -> None:
    samples = Samples.of_groups([1.0, 0.0], [0.0])
    changes = mask_response_truncated(
        Rollouts.of(samples, is_truncated=np.array([False, True, True]))
    )
    assert changes.masked is not None and changes.masked.tolist() == [False, True, True]
    assert changes.left_out is None and changes.rewards is None
    assert figures(changes) == {"masked_truncated_count": [1.0, 1.0]}


def test_invalid_reward_filter_drops_what_has_no_reward() -> None:
    samples = Samples.of_groups([0.0, 0.0, NAN])
    known = Rollouts.of(samples, has_reward=np.array([True, False, True]))
    assert left_out(invalid_reward_filter(known)) == [False, True, True]


@pytest.mark.parametrize(
    ("operation", "weight", "expected"),
    [
        ("ADD", 0.5, [1.0, 2.0, 3.0]),
        ("SUB", 0.5, [1.0, 0.0, 3.0]),
        ("MUL", 2.0, [0.0, 4.0, 3.0]),
        ("div", 2.0, [1.0, 0.25, 3.0]),
    ],
)
def test_reward_shaping_changes_rewards_where_there_is_a_number(
    operation: str, weight: float, expected: list[float]
) -> None:
    groups = rollouts([1.0, 1.0], [3.0], quality=[0.0, 2.0, NAN])
    rule: dict[str, JsonValue] = {"stats_key": "quality", "op_type": operation, "weight": weight}
    changes = reward_shaping_mapper(groups, reward_shaping_configs=[rule])
    assert changes.rewards is not None and changes.rewards.tolist() == expected
    differences = np.array(expected) - np.array([1.0, 1.0, 3.0])
    assert figures(changes)["reward_diff"] == [differences[:2].mean(), 0.0]


def test_reward_shaping_applies_its_rules_one_after_the_other() -> None:
    rules: list[dict[str, JsonValue]] = [
        {"stats_key": "a", "op_type": "ADD", "weight": 1.0},
        {"stats_key": "b", "op_type": "MUL", "weight": 1.0},
    ]
    changes = reward_shaping_mapper(
        rollouts([1.0], a=[2.0], b=[10.0]), reward_shaping_configs=rules
    )
    assert changes.rewards is not None and changes.rewards.tolist() == [30.0]
    assert needs_of(reward_shaping_mapper, {"reward_shaping_configs": rules}).numbers == ("a", "b")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("ADD", "is 'ADD', where {stats_key: TEXT"),
        ({"stats_key": "a", "wheight": 1}, "where {stats_key: TEXT"),
        ({"op_type": "ADD"}, "stats_key is None: name what lies in the samples' info"),
        ({"stats_key": "a", "op_type": "POW"}, "op_type is 'POW': give one of ADD, SUB, MUL, DIV"),
        ({"stats_key": "a", "weight": "much"}, "weight is 'much', not a number"),
    ],
)
def test_a_rule_of_reward_shaping_that_is_none_is_named(rule: JsonValue, words: str) -> None:
    with pytest.raises(UserError, match=r"^reward_shaping_configs\[0\]") as caught:
        needs_of(reward_shaping_mapper, {"reward_shaping_configs": [rule]})
    assert words in str(caught.value)


def test_pass_rates_are_measured_and_nothing_is_changed() -> None:
    rates = [[0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1 / 32, 1 / 32], [31 / 32, 31 / 32]]
    changes = pass_rate_calculator(rollouts(*rates))
    assert (changes.left_out, changes.masked, changes.rewards) == (None, None, None)
    assert figures(changes) == {
        "selection/valid_ratio": [0.0, 0.0, 1.0, 1.0, 1.0],
        "selection/strict_valid_ratio": [0.0, 0.0, 1.0, 0.0, 0.0],
        "selection/<1_ratio": [1.0, 0.0, 1.0, 1.0, 1.0],
        "selection/>0_ratio": [0.0, 1.0, 1.0, 1.0, 1.0],
        "selection/<15_16_ratio": [1.0, 0.0, 1.0, 1.0, 0.0],
        "selection/>1_16_ratio": [0.0, 1.0, 1.0, 0.0, 1.0],
    }


@as_subtests("name", BUILT_IN)
def test_an_operator_is_on_the_page_with_its_arguments(name: str) -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{name}` |")]
    arguments = read_signature(BUILT_IN[name]).arguments
    # One for tasks may be called the same.
    assert any(all(f"`{argument}" in row for argument in arguments) for row in rows)
