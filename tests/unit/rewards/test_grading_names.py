r"""Grading helpers that rewards written for Trinity-RFT import."""

import pytest

from trinity.rft.common.rewards.eval_utils import remove_right_units
from trinity.rft.common.rewards.naive_dapo_score import compute_score, grade_answer, match_answer
from trinity.rft.common.rewards.qwen25_eval import (
    extract_answer,
    fix_fracs,
    math_equal,
    strip_string,
)


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        (r"\frac12", r"\frac{1}{2}"),
        (r"\frac{1}2 + \frac3{4}", r"\frac{1}{2} + \frac{3}{4}"),
        (r"\frac{x+1}{2}", r"\frac{x+1}{2}"),
        ("1/2", "1/2"),
    ],
)
def test_arguments_of_fractions_get_braces(text: str, fixed: str) -> None:
    assert fix_fracs(text) == fixed


def test_units_on_the_right_are_left_out() -> None:
    assert remove_right_units(r"12\text{ cm}") == "12"
    assert remove_right_units("12") == "12"


def test_the_answer_after_the_thoughts_is_graded() -> None:
    assert match_answer(r"\boxed{1}</think>so \boxed{2}") == (True, "2")
    assert match_answer("no box") == (False, "no box")
    assert grade_answer("0.5", r"\frac{1}{2}")[0]
    assert not grade_answer("0.6", r"\frac{1}{2}")[0]
    assert not grade_answer("", "1")[0]
    assert (compute_score(r"\boxed{7}", "7"), compute_score("7", "7")) == (1.0, 0.0)


def test_answers_are_found_and_compared() -> None:
    assert extract_answer(r"then \boxed{3}") == "3"
    assert extract_answer("The answer is: 4.") == "4"
    assert extract_answer("none") is None
    assert math_equal("0.5", "1/2") and not math_equal(None, "1")
    assert strip_string(r"\frac12") == strip_string(r"\frac{1}{2}")
