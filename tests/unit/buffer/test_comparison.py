"""From rows of groups to an advantage function's arrays, and from its answer to new rows."""

import math

import numpy as np
import pytest

from services.buffer.domain.group import SampleDetail, SampleGroup, ScoredSample
from services.buffer.domain.operators import COPIED, GroupArrays
from services.buffer.domain.task_draws import hash_uniform
from trinity.algorithm.advantage.grpo import grpo
from trinity.algorithm.advantage.samples import Advantages
from trinity.types import FinishReason

SEED = 7


def sample(
    name: str,
    reward: float | None = 1.0,
    *,
    run: int = 0,
    reason: FinishReason = FinishReason.STOP,
) -> ScoredSample:
    return ScoredSample(experience_id=name, run=run, reward=reward, finish_reason=reason)


def group(*samples: ScoredSample, explore_step: int = 1, position: int = 0) -> SampleGroup:
    return SampleGroup(explore_step=explore_step, position=position, samples=samples)


def of_groups(*groups: SampleGroup) -> GroupArrays:
    return GroupArrays.from_groups(groups, {}, SEED)


def test_aborted_samples_are_left_out_and_truncated_prompts_count_as_zero() -> None:
    comparison = of_groups(
        group(
            sample("a", 1.0, run=0),
            sample("b", 9.0, run=1, reason=FinishReason.ABORT),
            sample("c", None, run=2, reason=FinishReason.PROMPT_TRUNCATED),
            sample("d", None, run=3),
        )
    )
    assert comparison.samples.rewards.tolist() == [1.0, 0.0]
    [outcome] = comparison.outcomes(grpo(comparison.samples))
    advantages = {row.parent_id: row.advantage for row in outcome.rows}
    assert advantages == pytest.approx({"a": math.sqrt(0.5), "c": -math.sqrt(0.5)}, abs=1e-5)
    reasons = {one.experience_id: one.reason for one in outcome.left_out}
    assert "cut off" in reasons["b"] and "awaited" in reasons["d"]
    assert outcome.metrics["experience_count"] == 2.0
    assert outcome.metrics["filtered_count"] == 2.0
    assert outcome.metrics["skipped_group_ratio"] == 0.0


def test_samples_are_numbered_by_group_run_and_step() -> None:
    comparison = of_groups(
        group(sample("a", run=0), sample("b", run=0), sample("c", run=2)),
        group(sample("x", reason=FinishReason.ABORT), position=1),
        group(sample("d", run=2), sample("e", run=2), position=2),
    )
    samples = comparison.samples
    assert samples.groups.tolist() == [0, 0, 0, 2, 2]
    assert samples.runs.tolist() == [0, 0, 2, 2, 2]
    assert samples.steps.tolist() == [0, 1, 0, 0, 1]
    outcomes = comparison.outcomes(grpo(samples))
    assert [len(outcome.rows) for outcome in outcomes] == [3, 0, 2]
    assert outcomes[1].metrics == {
        "experience_count": 0.0,
        "filtered_count": 1.0,
        "skipped_group_ratio": 1.0,
    }
    assert "group_advantages/reward_mean" in outcomes[2].metrics


def test_lots_are_a_samples_own_whatever_it_is_compared_with() -> None:
    first = group(sample("a", run=0), sample("b", run=1))
    second = group(sample("c", run=0), sample("d", run=1), position=1)
    together = of_groups(first, second).samples.lots
    assert (together[:2] == of_groups(first).samples.lots).all()
    assert (together[2:] == of_groups(second).samples.lots).all()
    assert len(set(together.tolist())) == 4
    other_seed = GroupArrays.from_groups([first], {}, SEED + 1).samples.lots
    assert not np.isclose(other_seed, together[:2]).any()


def test_lots_are_spread_evenly() -> None:
    numbers = np.arange(20_000)
    lots = hash_uniform(3, numbers // 100, numbers % 100)
    assert lots.min() >= 0.0 and lots.max() < 1.0
    counts, _ = np.histogram(lots, bins=20, range=(0.0, 1.0))
    assert counts.min() > 850 and counts.max() < 1150


def test_details_reach_the_function_and_equal_states_have_equal_numbers() -> None:
    details = {
        "a": SampleDetail(mean_logprob=-0.5, step_reward=2.0, state="s"),
        "c": SampleDetail(state="t"),
        "d": SampleDetail(state="s"),
    }
    groups = [group(sample("a"), sample("b")), group(sample("c"), sample("d"), position=1)]
    samples = GroupArrays.from_groups(groups, details, SEED).samples
    assert samples.mean_logprobs[0] == -0.5 and samples.step_rewards[0] == 2.0
    assert np.isnan(samples.step_rewards[1:]).all()
    first, unknown, other, same = samples.states.tolist()
    assert unknown == -1 and first == same != other


def test_a_copy_has_an_ordinal_of_its_own_and_the_advantage_of_its_source() -> None:
    comparison = of_groups(
        group(sample("a"), sample("b", run=1)),
        group(sample("c"), sample("d", run=1), position=1),
    )
    advantages = Advantages(
        np.array([0.0, 0.0, 1.5, -1.5]),
        left_out=np.array([True, True, False, False]),
        reason="all alike",
        copies_of=np.array([2, 2, -1, -1]),
        metrics={"group_advantages/reward_mean": np.array([0.25, 0.75])},
    )
    first, second = comparison.outcomes(advantages)
    assert [(row.parent_id, row.ordinal, row.advantage) for row in first.rows] == [
        ("c", 1, 1.5),
        ("c", 2, 1.5),
    ]
    assert {one.reason for one in first.left_out} == {"all alike" + COPIED}
    assert [(row.parent_id, row.ordinal) for row in second.rows] == [("c", 0), ("d", 0)]
    assert first.metrics["group_advantages/reward_mean"] == 0.25
    assert first.metrics["filtered_count"] == 2.0


@pytest.mark.parametrize("advantage", [np.nan, np.inf, 1e300])
def test_what_training_cannot_represent_fails_its_group_alone(advantage: float) -> None:
    comparison = of_groups(group(sample("a")), group(sample("b"), position=1))
    first, second = comparison.outcomes(Advantages(np.array([advantage, 1.0])))
    assert "not finite" in first.error and not first.rows
    assert not second.error and len(second.rows) == 1


@pytest.mark.parametrize(
    ("advantages", "words"),
    [
        (Advantages(np.zeros(1)), r"shape \(1,\) for 2 rewards"),
        (Advantages(np.zeros(2), left_out=np.zeros(1, np.bool_)), "must have 2 entries"),
        (Advantages(np.zeros(2), metrics={"x": np.zeros(3)}), "metrics must have 1 entries"),
        (Advantages(np.zeros(2), copies_of=np.array([1, -1])), "places not left out"),
        (
            Advantages(np.zeros(2), left_out=np.ones(2, np.bool_), copies_of=np.array([1, -1])),
            "left out themselves",
        ),
        (
            Advantages(np.zeros(2), left_out=np.array([True, False]), copies_of=np.array([2, -1])),
            "not there",
        ),
    ],
)
def test_an_answer_that_does_not_fit_is_an_error_that_says_why(
    advantages: Advantages, words: str
) -> None:
    comparison = of_groups(group(sample("a"), sample("b", run=1)))
    with pytest.raises(ValueError, match=words):
        comparison.outcomes(advantages)
