"""A function of all answers of a group is an experience operator."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples
from trinity.operators.group_reward import Answer, group_reward
from trinity.operators.kinds import USER_FUNCTION_KINDS
from trinity.operators.rollouts import Content, Rollouts


@group_reward
def ranks(answers: Sequence[Answer], *, scale: float = 1.0) -> list[float]:
    """The number of answers of the group that are shorter."""
    lengths = [len(answer.response) for answer in answers]
    return [scale * sum(other < own for other in lengths) for own in lengths]


@group_reward
async def judged(answers: Sequence[Answer]) -> list[float]:
    await asyncio.sleep(0)
    return [answer.reward + answer.metrics["bonus"] for answer in answers]


def rollouts(*groups: list[str], has_reward: list[bool] | None = None) -> Rollouts:
    texts = [text for group in groups for text in group]
    made = Rollouts.of(Samples.of_groups(*([0.5] * len(group) for group in groups)))
    contents = [
        Content(prompt_text="?", response_text=text, info={"n": i}, metrics={"bonus": float(i)})
        for i, text in enumerate(texts)
    ]
    known = made.has_reward if has_reward is None else np.array(has_reward)
    return replace(made, contents=contents, has_reward=known)


def test_each_group_is_compared_with_itself() -> None:
    changes = ranks(rollouts(["a", "bbb", "cc"], ["dddd", "e"]), scale=2.0)
    assert changes.rewards is not None
    assert changes.rewards.tolist() == [0.0, 4.0, 2.0, 2.0, 0.0]


def test_an_asynchronous_function_is_awaited() -> None:
    changes = judged(rollouts(["a", "b"]))
    assert changes.rewards is not None
    assert changes.rewards.tolist() == [0.5, 1.5]


def test_answers_without_a_reward_are_not_compared() -> None:
    changes = ranks(rollouts(["a", "bb", "ccc"], has_reward=[False, True, True]))
    assert changes.rewards is not None
    assert changes.rewards.tolist() == [0.5, 0.0, 1.0]


def test_texts_are_asked_for_and_the_process_of_users_calls_it() -> None:
    assert needs_of(ranks, {}).content
    kind = USER_FUNCTION_KINDS["operator"]
    given = kind.input_from_json(kind.input_to_json(rollouts(["a", "bb"])))
    changes = kind.call(f"{__name__}.ranks", given, {"scale": 3.0})
    assert kind.result_to_json(changes)["rewards"] == [0.0, 3.0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1.0], "bad returned 1 scores for 2 answers"),
        ([1.0, float("nan")], "bad returned nan for answer 1: give a finite number"),
        ([1.0, 1e300], "for answer 1: give a finite number, of 1e"),
        ([1.0, "good"], "bad returned 'good' for answer 1"),
        (None, "bad returned NoneType, where a list of a number for each of 2 answers"),
        ({"a": 1.0}, "bad returned dict"),
    ],
)
def test_anything_but_a_number_for_each_is_refused(given: object, sentence: str) -> None:
    def bad(_: Sequence[Answer]) -> object:
        return given

    with pytest.raises(ValueError, match=sentence):
        group_reward(bad)(rollouts(["a", "b"]))  # type: ignore[arg-type]
