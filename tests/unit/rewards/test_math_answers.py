"""Answers that a person would call right are paid, and no others, whichever reward grades."""

import pytest

from tests.unit.rewards.test_answer_table import rows
from tests.unit.subtests import as_subtests
from trinity.plugins import REWARDS
from trinity.rewards.math_grading import (
    MAX_CHARACTERS,
    is_equivalent,
    is_right_answer,
    last_boxed,
)
from trinity.rewards.math_prose import is_stated
from trinity.rewards.reward import BoundReward

MARKED = {
    "math_boxed_reward": r"so \boxed{%s}",
    "math_dapo_reward": "I think.\nAnswer: %s",
    "math_reward": "<think>well</think><answer>%s</answer>",
}
BOXED = [
    (answer, truth, is_right)
    for place, truth, right, wrong in rows()
    for is_right, answers in ((True, right), (False, wrong))
    for answer in answers
    if place == "boxed"
]


@as_subtests(
    ("answer", "truth", "is_right"),
    [
        (r" \frac{3}{4} ", r"\frac{3}{4}", True),
        ("5\n6", "5", False),
        ("", "0", False),
        ("", "", False),
    ],
)
def test_space_around_an_answer_does_not_count_and_nothing_is_no_answer(
    answer: str, truth: str, is_right: bool
) -> None:
    assert is_right_answer(answer, truth) is is_right


@as_subtests("name", MARKED)
@as_subtests(("answer", "truth", "is_right"), BOXED[::13])
def test_every_reward_grades_alike(name: str, answer: str, truth: str, is_right: bool) -> None:
    """How the answer is marked differs; `test_answer_table` has all answers."""
    response = MARKED[name] % answer
    parts = BoundReward(REWARDS.get(name), {}, name)(
        response=response, truth=truth, response_length=1
    )
    assert (parts["accuracy"] == 1.0) == is_right


@as_subtests(
    ("response", "truth", "is_right"),
    [
        (r"Half of it is $\frac{1}{2}$.", "0.5", True),
        ("The sum is 12, so the answer is 12.", "12", True),
        ("first 3, then \\boxed{x>8}", "8", False),
        (r"\ln 8", "8", False),
        ("x>8", "8", False),
        ("2x+1", "1+2x", True),
        (r"\text{Monday}", "Monday", True),
        ("I do not know", "8", False),
    ],
)
def test_an_answer_that_is_not_marked_is_looked_for_in_prose_alone(
    response: str, truth: str, is_right: bool
) -> None:
    assert is_equivalent(response, truth) is is_right


def test_prose_without_an_end_takes_no_time() -> None:
    for piece in ("5 = ", "answer is 5 ", "$5 ", "5, ", "not ", "\\text{ 5", "is 5, ", "- "):
        assert is_stated(piece * (MAX_CHARACTERS // len(piece)), "7", str.__eq__) is not True


def test_many_open_boxes_are_read_once() -> None:
    assert last_boxed("\\boxed{" * 200_000) is None
    nested = last_boxed("\\boxed{" * 100_000 + "}" * 100_000)
    assert nested == "\\boxed{" * 99_999 + "}" * 99_999
    assert last_boxed("\\boxed{a\\boxed{b}} \\boxed{") == "a\\boxed{b}"


@pytest.mark.parametrize(
    ("response", "truth", "wrong"),
    [
        ("It costs $3.5k", "3500", "3.5"),
        ("So there are 5M", "5000000", "5"),
        ("So there are 5万 people", "50000", "5"),
        ("There are 5 Millionen", "5000000", "5"),
        ("I get 2 1/2", "5/2", "1"),
        ("It is $1.5×10^3$", "1500", "1.5"),  # noqa: RUF001
    ],
)
def test_numbers_in_prose_are_read_with_what_multiplies_them(
    response: str, truth: str, wrong: str
) -> None:
    assert not is_equivalent(response, wrong)
    assert is_equivalent(response, truth)
