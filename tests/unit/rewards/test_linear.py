"""Rewards of ours take time that grows with the response, whatever it repeats."""

import random
import re
from collections.abc import Callable

import pytest

from tests.support.endless import assert_takes_long
from trinity.plugins import REWARDS
from trinity.rewards.math_grading import last_boxed
from trinity.rewards.tags import LAYOUTS, LOOSE, STRICT, tagged
from trinity.rft.common.rewards import FormatReward as TheirFormat
from trinity.rft.common.rewards import MathRewardFn
from trinity.rft.common.rewards.eval_utils import (
    extract_solution,
    simple_answer_parser,
    validate_equation,
)
from trinity.workflows.sudoku_workflow import moves_in
from trinity.workflows.tool_call_workflow import parse_calls

LONG = 200_000
"""Characters; what reads them again from each of their places takes minutes: the test times out."""
PIECES = (
    *("<answer>", "</answer>", "<think>", "</think>", "\n", " ", "a", "</think>\n<answer>"),
    *("\n</think>\n<answer>\n", "<think>\n", "\n</answer>"),
)
REPEATED = (
    *("<answer>", "</think> <answer>", "</think><answer></answer>x", "\\boxed{", "Answer: ", "1"),
    *("<think>", "<moves>", "<answer>(", "#### 1", " ", "\n", "Answer", "\\boxed{1} {"),
)


def rewards() -> list[tuple[str, Callable[[str], object]]]:
    """Each with a truth that it takes."""
    truth = {"countdown_reward": {"target": 3, "numbers": [1, 2]}}
    named: list[tuple[str, Callable[[str], object]]] = [
        (name, _call(name, truth.get(name, "12345")))
        for name in (*_OF_TEXTS, "countdown_reward", "search_answer_reward")
    ]
    their_format = MathRewardFn().format_reward
    return [
        *named,
        ("their format", TheirFormat()),
        ("their layout", their_format),
        ("simple_answer_parser", simple_answer_parser),
        ("extract_solution", extract_solution),
        ("validate_equation", lambda text: validate_equation(text, [1])),
        ("last_boxed", last_boxed),
        ("sudoku", moves_in),
        ("tool_call", parse_calls),
    ]


_OF_TEXTS = ("format_reward", "gsm8k_reward", "exact_match_reward")


def _call(name: str, truth: object) -> Callable[[str], object]:
    source = REWARDS.get(name)
    reward = source() if isinstance(source, type) else source
    needs = {} if name == "format_reward" else {"truth": truth}
    return lambda text: reward(response=text, **needs)


@pytest.mark.parametrize("before", ["", "<think>\n", "<answer>"])
@pytest.mark.parametrize("reward", [pytest.param(call, id=name) for name, call in rewards()])
def test_a_response_that_repeats_itself_takes_no_longer(
    reward: Callable[[str], object], before: str
) -> None:
    for repeated in REPEATED:
        text = before + repeated * (LONG // len(repeated))
        reward(text)


def test_control_a_lazy_pattern_reads_the_rest_from_each_tag() -> None:
    text = f"'<answer>' * {LONG // 8}"
    assert_takes_long(f"import re; re.findall(r'(?s)<answer>(.*?)</answer>', {text})")


def test_tags_are_those_of_the_pattern() -> None:
    rng = random.Random(3)
    for _ in range(3000):
        text = "".join(rng.choices(PIECES, k=rng.randrange(9)))
        assert tagged(text, "answer") == re.findall(r"(?s)<answer>(.*?)</answer>", text)
        own = re.search(r"<answer>(.*?)</answer>", text)
        assert simple_answer_parser(text) == (own[1] if own else text)


def test_layouts_are_those_of_the_patterns() -> None:
    rng = random.Random(5)
    seen = set()
    their_default = MathRewardFn.DEFAULT_FORMAT_PATTERN
    for _ in range(20_000):
        text = "".join(rng.choices(PIECES, k=rng.randrange(1, 9)))
        for pattern in (STRICT, LOOSE):
            expected = re.fullmatch(pattern, text.strip(), re.DOTALL) is not None
            assert LAYOUTS[pattern].matches(text.strip()) == expected, (pattern, text)
            seen.add((pattern, expected))
        for pattern in (STRICT, their_default):
            expected = re.match(pattern, text, re.DOTALL | re.MULTILINE) is not None
            found = TheirFormat(pattern)(text)["format_score"] > 0
            assert found == expected, (pattern, text)
            seen.add(("their " + pattern, expected))
    assert len(seen) == 8


def test_replies_that_would_raise_are_merely_wrong() -> None:
    assert moves_in(f"<moves>{'1' * 5000} 2 3</moves>") == []
    deep = "[" * 100_000 + "]" * 100_000
    assert parse_calls(f"<think>a</think><tool_call>{deep}</tool_call>") is None
    assert not validate_equation("1" * 5000, [1])
