r"""Rewards for answers in `\boxed{}`."""

from typing import Any

import pytest

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.math_grading import last_boxed
from trinity.rewards.reward import BoundReward


def score(name: str, response: str, truth: str, length: int = 0, **args: Any) -> dict[str, float]:
    return BoundReward(REWARDS.get(name), args, name)(
        response=response, truth=truth, response_length=length
    )


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("\\boxed{1} or \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{1} or \\boxed{2", "1"),
        ("none", None),
        ("\\boxed{}", ""),
    ],
)
def test_the_last_box_that_is_closed_counts(text: str, inside: str | None) -> None:
    assert last_boxed(text) == inside


@pytest.mark.parametrize(
    ("response", "truth", "accuracy"),
    [("\\boxed{3}", "3", 1.0), ("3", "3", 0.0), ("\\boxed{3}", "so \\boxed{3}", 1.0)],
)
def test_an_answer_counts_in_its_box_alone(response: str, truth: str, accuracy: float) -> None:
    parts = score("math_boxed_reward", response, truth)
    assert parts == {"accuracy": accuracy, "format_score": 0.0}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think> \\boxed{1}", 0.0),
        ("\\boxed{1}", -0.2),
        ("<think>a</think><think>b</think> \\boxed{1}", -0.2),
        ("well <think>a</think> \\boxed{1}", -0.2),
        ("<think>a \\boxed{1}", -0.2),
    ],
)
def test_thoughts_stand_in_one_pair_of_tags_at_the_beginning(
    response: str, expected: float
) -> None:
    parts = score("math_boxed_reward", response, "1", with_think=True, format_score_coef=0.2)
    assert parts["format_score"] == expected


@pytest.mark.parametrize(
    ("response", "accuracy"),
    [("Answer: 4", 1.0), ("Answer: 3\nAnswer: 4", 1.0), ("\\boxed{4}", 1.0), ("4", -1.0)],
)
def test_dapo_gives_one_or_minus_one(response: str, accuracy: float) -> None:
    assert score("math_dapo_reward", response, "4") == {"accuracy": accuracy, "format_score": 0.0}


@pytest.mark.parametrize(
    ("length", "penalty"), [(10, 0.0), (80, 0.0), (90, -0.25), (100, -0.5), (500, -0.5)]
)
def test_dapo_takes_off_more_the_longer_a_response_is(length: int, penalty: float) -> None:
    parts = score(
        "math_dapo_reward",
        "Answer: 4",
        "4",
        length,
        enable_overlong_penalty=True,
        penalty_factor=0.5,
        max_response_length=100,
        cache_length=20,
    )
    assert parts["format_score"] == penalty


def test_dapo_says_which_lengths_it_needs() -> None:
    with pytest.raises(UserError, match="needs `max_response_length` and `cache_length`"):
        score("math_dapo_reward", "", "", enable_overlong_penalty=True)
