"""Rewards: what they give for which answer."""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.exact_match_reward import ExactMatchReward
from trinity.rewards.reward import BoundReward, RewardFn, check_reward
from trinity.rewards.score import BadReward
from trinity.types import JsonObject, JsonValue

FORMATTED = "<think>\n1+1 is 2\n</think>\n<answer>\n2\n</answer>"


def score(name: str, response: str, truth: JsonValue = "", **args: JsonValue) -> dict[str, float]:
    reward = BoundReward(REWARDS.get(name), args, name)
    return reward(response=response, truth=truth, prompt="", task={})


@pytest.mark.parametrize(
    ("response", "truth", "expected"), [("12", "12", 1.0), (" 12\n", "12", 1.0), ("12.", "12", 0.0)]
)
def test_exact_match_ignores_only_white_space_around(
    response: str, truth: str, expected: float
) -> None:
    assert score("exact_match_reward", response, truth) == {"accuracy": expected}


def test_exact_match_may_ignore_case() -> None:
    assert score("exact_match_reward", "Paris", "paris", ignore_case=True) == {"accuracy": 1.0}


def test_a_truth_may_be_a_number() -> None:
    assert score("exact_match_reward", "12", 12) == {"accuracy": 1.0}


@pytest.mark.parametrize(
    ("response", "expected"), [(FORMATTED, 0.1), (FORMATTED + "\n", 0.1), ("2", -0.1)]
)
def test_format_is_a_tenth_more_or_less(response: str, expected: float) -> None:
    assert score("format_reward", response) == {"format_score": expected}


@pytest.mark.parametrize(
    ("response", "truth", "accuracy", "layout"),
    [
        (FORMATTED, "2", 1.0, 0.1),
        ("<think>so</think> <answer>2.0</answer>", "2", 1.0, 0.1),
        ("<think>so</think><answer>3</answer>", "2", 0.0, 0.1),
        ("2", "2", 1.0, -0.1),
        ("", "2", 0.0, -0.1),
    ],
)
def test_math_reward_adds_accuracy_and_layout(
    response: str, truth: str, accuracy: float, layout: float
) -> None:
    assert score("math_reward", response, truth) == {"accuracy": accuracy, "format_score": layout}


@as_subtests(
    ("response", "expected"),
    [
        ("<answer>(1+2)*4*2</answer>", 1.0),
        ("<answer>2*(1+2)*4 = 24</answer>", 1.0),
        ("<answer>2*(1+2)*4 = 24.</answer>", 1.0),
        ("<answer>2*(1+2)*4 = 24.0 (done)</answer>", 1.0),
        ("<answer>2*(1+2)*4 = 25</answer>", 0.1),
        ("<answer>2*(1+2)*4 = 24 = 25</answer>", 0.1),
        ("<answer>2*(1+2)*4 = 24-1</answer>", 0.1),
        ("<answer>2*(1+2)*4 = 24e999999999</answer>", 0.1),
        ("<answer>4*4+4*2</answer>", 0.1),
        ("<answer>__import__('os')</answer>", 0.1),
        ("<answer>1/0</answer>", 0.1),
        ("24", 0.0),
    ],
)
def test_countdown_wants_each_number_once(response: str, expected: float) -> None:
    truth: JsonObject = {"target": 24, "numbers": [1, 2, 2, 4]}
    assert score("countdown_reward", response, truth) == {"score": expected}


def test_a_reward_is_given_only_what_its_signature_names() -> None:
    class Length(RewardFn):
        def __call__(self, *, response: str) -> dict[str, float]:
            return {"length": len(response)}

    assert BoundReward(Length, {}, "length")(response="four", truth="x", task={}) == {"length": 4.0}


def test_a_function_is_a_reward_too() -> None:
    def close_to(response: str, truth: str, scale: float) -> dict[str, float]:
        return {"closeness": scale * -abs(float(response) - float(truth))}

    reward = BoundReward(close_to, {"scale": 2.0}, "close_to")
    assert reward(response="3", truth="5", prompt="") == {"closeness": -4.0}


def test_arguments_that_a_reward_does_not_know_are_named() -> None:
    with pytest.raises(UserError, match=r"exact_match_reward refuses its reward_fn_args.*case"):
        score("exact_match_reward", "", "", case=True)


class WantsTooMuch(RewardFn):
    def __call__(self, *, response: str, moon: int) -> dict[str, float]:
        return {"moon": float(moon)}


class Inheriting(ExactMatchReward):
    pass


class NotCallable:
    pass


def wants_the_moon(response: str, moon: int) -> dict[str, float]:
    return {response: moon}


def takes_all(limit: int = 3, **known: object) -> dict[str, float]:
    return {"all": len(known) + limit}


@pytest.mark.parametrize(
    ("source", "args", "named"),
    [
        (WantsTooMuch, {}, "moon"),
        (ExactMatchReward, {"ignore_cases": True}, "ignore_cases"),
        (NotCallable, {}, "without __call__"),
        (wants_the_moon, {}, "moon"),
    ],
)
def test_a_reward_that_cannot_be_called_is_found_before_the_run(
    source: Any, args: dict[str, Any], named: str
) -> None:
    with pytest.raises(UserError, match=named):
        check_reward(source, args, "my_reward")


@pytest.mark.parametrize(
    ("source", "args"),
    [
        (Inheriting, {"ignore_case": True}),
        (wants_the_moon, {"moon": 3}),
        (takes_all, {}),
    ],
)
def test_a_reward_that_fits_is_taken(source: Any, args: dict[str, Any]) -> None:
    check_reward(source, args, "my_reward")


@dataclass
class Scaled:
    """A dataclass, which has no hash."""

    scale: float = 2.0

    def __call__(self, response: str, truth: str) -> float:
        return self.scale * (response == truth)


class Static:
    @staticmethod
    def __call__(response: str, truth: str) -> float:
        return float(response == truth)


class OfClass:
    @classmethod
    def __call__(cls, response: str, truth: str) -> float:
        return float(response == truth)


class OtherSelf:
    def __call__(this, response: str, truth: str) -> float:
        return float(response == truth)


def compares(scale: float, response: str, truth: str) -> float:
    return scale * (response == truth)


@as_subtests(
    ("source", "args", "expected"),
    [
        (Scaled, {}, 2.0),
        (Scaled, {"scale": 3.0}, 3.0),
        (Scaled(4.0), {}, 4.0),
        (Static, {}, 1.0),
        (OfClass, {}, 1.0),
        (OtherSelf, {}, 1.0),
        (Static.__call__, {}, 1.0),
        (partial(compares, 5.0), {}, 5.0),
        (partial(compares, scale=6.0), {}, 6.0),
        (partial(compares, scale=6.0), {"scale": 7.0}, 7.0),
    ],
)
def test_a_reward_may_be_any_callable(source: Any, args: dict[str, Any], expected: float) -> None:
    check_reward(source, args, "own")
    reward = BoundReward(source, args, "own")
    assert reward.needs_truth
    every = {"response": "4", "prompt": "2+2=", "messages": [], "task": {}, "finish_reason": "stop"}
    assert reward(**every, truth="4") == {"own": expected}
    assert reward(**every, truth="5") == {"own": 0.0}


def test_a_function_of_verls_gets_verls_arguments() -> None:
    seen: dict[str, object] = {}

    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: object = None
    ) -> float:
        seen.update(source=data_source, extra=extra_info)
        return float(solution_str == ground_truth)

    check_reward(compute_score, {}, "compute_score")
    reward = BoundReward(compute_score, {}, "compute_score")
    row: JsonObject = {"data_source": "openai/gsm8k", "extra_info": {"index": 3}}
    found = reward(response="72", ground_truth="72", truth="72", task=row)
    assert found == {"compute_score": 1.0}
    assert seen == {"source": "openai/gsm8k", "extra": {"index": 3}}
    assert reward(response="1", ground_truth="72", task={}) == {"compute_score": 0.0}
    assert seen == {"source": None, "extra": None}


def test_the_arguments_that_a_process_is_sent_are_those_of_the_call() -> None:
    """A reward in its own process gets the values that it names, and is called with them."""

    def compute_score(data_source: str, solution_str: str, extra_info: JsonObject) -> float:
        return float((data_source, solution_str, extra_info) == ("a", "72", {"index": 3}))

    reward = BoundReward(compute_score, {}, "compute_score")
    row: JsonObject = {"data_source": "a", "extra_info": {"index": 3}}
    values = reward._named({"response": "72", "task": row})
    assert reward(**values) == {"compute_score": 1.0}


def test_a_function_of_verls_may_pass_on_what_else_it_is_given() -> None:
    def inner(right: bool, extra_info: JsonObject, bonus: float) -> float:
        return len(extra_info) + bonus if right else 0.0

    def compute_score(solution_str: str, ground_truth: str, **kwargs: Any) -> float:
        assert kwargs.pop("data_source") == "a"
        return inner(solution_str == ground_truth, **kwargs)

    reward = BoundReward(compute_score, {"bonus": 0.5}, "compute_score")
    row: JsonObject = {"data_source": "a", "extra_info": {"index": 3}}
    known = {"response": "72", "truth": "72", "ground_truth": "72", "prompt": "", "task": row}
    assert reward(**known) == {"compute_score": 1.5}


async def test_a_function_of_lists_is_asked_about_one_answer() -> None:
    """As veRL's reward manager `batch` calls it."""

    def compute_score(
        data_sources: list[str],
        solution_strs: list[str],
        ground_truths: list[str],
        extra_infos: list[JsonObject],
        **kwargs: Any,
    ) -> Any:
        assert (data_sources, extra_infos, kwargs) == (["a"], [{"index": 3}], {"bonus": 2})
        right = [a == b for a, b in zip(solution_strs, ground_truths, strict=True)]
        return {"score": 1.0} if right == [False] else [{"score": 1.0, "pred": solution_strs[0]}]

    args: JsonObject = {"bonus": 2}
    check_reward(compute_score, args, "compute_score")
    reward = BoundReward(compute_score, args, "compute_score")
    assert reward.needs_truth
    row: JsonObject = {"data_source": "a", "extra_info": {"index": 3}}
    known = {"response": "72", "ground_truth": "72", "task": row}
    assert reward(**known) == {"score": 1.0}
    assert await reward.score(**known) == {"score": 1.0}
    with pytest.raises(
        TypeError, match=r"takes lists \(`solution_strs`\) and returned dict for one"
    ):
        reward(**{**known, "response": "1"})


async def test_an_asynchronous_reward_is_awaited_and_waited_for() -> None:
    async def compute_score(solution_str: str) -> float:
        await asyncio.sleep(0)
        return float(len(solution_str))

    check_reward(compute_score, {}, "compute_score")
    reward = BoundReward(compute_score, {}, "compute_score")
    assert await reward.score(response="four") == {"compute_score": 4.0}
    assert reward(response="four") == {"compute_score": 4.0}  # as in a workflow with a thread


def test_a_function_may_give_a_mere_number() -> None:
    def right(response: str, truth: str) -> float:
        return float(response == truth)

    check_reward(right, {}, "mine.right")
    assert BoundReward(right, {}, "mine.right")(response="4", truth="4", task={}) == {"right": 1.0}


def test_a_text_is_no_reward() -> None:
    def good(response: str) -> str:
        return response

    with pytest.raises(TypeError, match="neither a dict of named numbers nor a number"):
        BoundReward(cast(Any, good), {}, "mine.good")(response="4")


@pytest.mark.parametrize("value", [1e31, -1e39, 1e160, float("inf"), float("nan")])
def test_a_reward_that_training_cannot_represent_is_none(value: float) -> None:
    def far() -> dict[str, float]:
        return {"score": value, "seen": 1e39}

    with pytest.raises(BadReward, match=r"returned .* as 'score': return a finite number"):
        BoundReward(far, {}, "mine.far")(response="4")
    assert BoundReward(lambda: -1e30, {}, "mine.near")(response="4") == {"near": -1e30}
