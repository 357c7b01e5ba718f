"""What operators do to groups on their way to the advantage function."""

from collections.abc import Mapping

import numpy as np
import pytest

from services.buffer.domain.group import SampleDetail, SampleGroup, ScoredSample
from services.buffer.domain.operators import GroupArrays
from trinity.algorithm.advantage.grpo import grpo
from trinity.algorithm.advantage.samples import Advantages
from trinity.operators.kinds import (
    changes_from_json,
    changes_to_json,
    rollouts_from_json,
    rollouts_to_json,
)
from trinity.operators.rollouts import Changes, Content
from trinity.types import FinishReason

SEED = 7


def group(position: int, *rewards: float, reason: str = FinishReason.STOP) -> SampleGroup:
    samples = [
        ScoredSample(
            experience_id=f"{position}/{run}",
            run=run,
            reward=reward,
            finish_reason=reason,
            response_length=run + 1,
        )
        for run, reward in enumerate(rewards)
    ]
    return SampleGroup(explore_step=1, position=position, samples=samples)


def compared(
    *groups: SampleGroup, details: Mapping[str, SampleDetail] | None = None
) -> GroupArrays:
    return GroupArrays.from_groups(groups, details or {}, SEED)


def of(*values: bool) -> np.ndarray:
    return np.array(values, dtype=np.bool_)


def test_operators_see_what_is_known_beside_the_rewards() -> None:
    content = Content(prompt_text="p", response_text="r", info={}, metrics={})
    details = {
        "0/0": SampleDetail(numbers={"quality": 2.0}, content=content),
        "0/1": SampleDetail(numbers={"quality": np.nan}, content=content),
    }
    seen = compared(group(0, 1.0, 0.0, reason=FinishReason.LENGTH), details=details).samples
    assert seen.is_truncated.tolist() == [True, True]
    assert seen.response_lengths.tolist() == [1, 2]
    assert seen.numbers["quality"][0] == 2.0 and np.isnan(seen.numbers["quality"][1])
    assert [one.response_text for one in seen.contents] == ["r", "r"]


def test_what_one_operator_leaves_is_what_the_next_one_and_the_advantage_see() -> None:
    begun = compared(group(0, 1.0, 0.0, 5.0), group(1, 0.0, 0.0))
    out = Changes(left_out=of(False, False, True, True, True), reason="too good")
    filtered = begun.with_changes("picky", out)
    assert filtered.samples.rewards.tolist() == [1.0, 0.0]
    assert filtered.ids == ["0/0", "0/1"]
    shaped = filtered.with_changes("shaping", Changes(rewards=np.array([3.0, 0.0])))
    first, second = shaped.outcomes(grpo(shaped.samples, epsilon=0.0))
    assert [(row.parent_id, row.reward) for row in first.rows] == [("0/0", 3.0), ("0/1", None)]
    assert [row.advantage for row in first.rows] == pytest.approx([2**-0.5, -(2**-0.5)])
    assert [(one.experience_id, one.reason) for one in first.left_out] == [("0/2", "too good")]
    assert not second.rows and second.metrics["skipped_group_ratio"] == 1.0
    assert first.metrics["picky/filtered_count"] == 1.0
    assert second.metrics["picky/filtered_count"] == second.metrics["filtered_count"] == 2.0


def test_masked_samples_are_compared_and_say_so() -> None:
    begun = compared(group(0, 1.0, 0.0))
    masked = begun.with_changes("overlong", Changes(masked=of(False, True)))
    [outcome] = masked.outcomes(Advantages(np.array([0.5, -0.5])))
    assert [(row.advantage, row.is_masked) for row in outcome.rows] == [(0.5, False), (-0.5, True)]
    assert outcome.metrics["filtered_count"] == 0.0


@pytest.mark.parametrize("reward", [np.nan, np.inf, 1e300, -1e31])
def test_rewards_that_training_cannot_represent_fail_their_group_and_name_the_operator(
    reward: float,
) -> None:
    begun = compared(group(0, 1.0, 0.0), group(1, 1.0, 0.0))
    shaped = begun.with_changes("shaping", Changes(rewards=np.array([reward, 0.0, 2.0, 0.0])))
    assert shaped.ids == ["1/0", "1/1"]
    first, second = shaped.outcomes(grpo(shaped.samples))
    assert first.error == "it gave rewards that are not finite numbers, of 1e+30 at most"
    assert first.function == "operator shaping" and not first.rows
    assert not second.error and second.rows[0].reward == 2.0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (Changes(left_out=of(True)), r"its left_out has the shape \(1,\) for 2 samples"),
        (Changes(masked=of(True, False, True)), r"its masked has the shape \(3,\)"),
        (Changes(rewards=np.zeros((2, 1))), r"its rewards has the shape \(2, 1\)"),
        (Changes(metrics={"x": np.zeros(2)}), "its metric x must have 1 entries, one a group"),
    ],
)
def test_changes_that_are_not_of_these_samples_are_refused(changes: Changes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compared(group(0, 1.0, 0.0)).with_changes("own", changes)


def test_what_crosses_to_the_process_of_users_comes_back_the_same() -> None:
    content = Content(
        prompt_text="p", response_text="\ud83d\ude00", info={"a": [1]}, metrics={"accuracy": 1.0}
    )
    details = {"0/0": SampleDetail(numbers={"x": np.nan}, content=content)}
    sent = compared(group(0, 1.0, reason=FinishReason.LENGTH), details=details).samples
    got = rollouts_from_json(rollouts_to_json(sent))
    assert got.is_truncated.tolist() == [True] and got.rewards.tolist() == [1.0]
    assert np.isnan(got.numbers["x"]).all() and list(got.contents) == [content]
    changes = Changes(left_out=of(True), reason="why", metrics={"m": np.array([2.0])})
    back = changes_from_json(changes_to_json(changes))
    assert back.left_out is not None and back.left_out.tolist() == [True]
    assert (back.reason, back.masked, back.rewards) == ("why", None, None)
    assert back.metrics["m"].tolist() == [2.0]
