"""Rewards that compare the answers of a group: functions of all of them, as experience operators.

@group_reward
def longest_wins(answers: Sequence[Answer]) -> Sequence[float]:
    longest = max(len(answer.response) for answer in answers)
    return [float(len(answer.response) == longest) for answer in answers]

data_processor.experience_pipeline.operators: [{name: my_rewards.longest_wins}]
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, SupportsFloat

import numpy as np

from trinity.algorithm.advantage.needs import Needs, needs
from trinity.operators.rollouts import Changes, OperatorFn, Rollouts
from trinity.runtime.json_values import JsonObject
from trinity.types import LARGEST_REWARD


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer of a group."""

    prompt: str
    response: str
    reward: float
    """The reward that the workflow gave it; 0 where `has_reward` is false."""
    has_reward: bool
    info: JsonObject
    """Values that the workflow stored with it."""
    metrics: Mapping[str, float]
    """Its metrics and the parts of its reward."""


Scores = Sequence[float]
GroupReward = Callable[..., Scores | Awaitable[Scores]]
"""Takes the answers of one group, then the operator's `args` by keyword."""


def group_reward(function: GroupReward) -> OperatorFn:
    """Makes an operator of a function that scores the answers of a group together.

    It may be `async def`. Answers whose prompt was too long are not scored. The operator raises
    ValueError when there is not one finite score for each answer: the group counts as failed.
    """

    @wraps(function)
    def operator(rollouts: Rollouts, /, **arguments: Any) -> Changes:
        rewards_N = rollouts.rewards.copy()
        for group in np.unique(rollouts.groups):
            which_K = np.flatnonzero((rollouts.groups == group) & rollouts.has_reward)
            if len(which_K):
                answers = [_answer(rollouts, int(i)) for i in which_K]
                rewards_N[which_K] = _scores(function, answers, arguments)
        return Changes(rewards=rewards_N)

    # The wrapper's signature is that of an operator, whose arguments are checked before a run.
    own = list(inspect.signature(function).parameters.values())
    operator.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]  # typeshed lacks it
    return needs(Needs(content=True))(operator)


def _answer(rollouts: Rollouts, place: int) -> Answer:
    content = rollouts.contents[place]
    return Answer(
        prompt=content.prompt_text,
        response=content.response_text,
        reward=float(rollouts.rewards[place]),
        has_reward=bool(rollouts.has_reward[place]),
        info=content.info,
        metrics=content.metrics,
    )


def _scores(
    function: GroupReward, answers: Sequence[Answer], arguments: Mapping[str, Any]
) -> list[float]:
    given = function(answers, **arguments)
    if inspect.isawaitable(given):
        given = asyncio.run(_awaited(given))
    name = getattr(function, "__name__", "the group reward")
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(
            f"{name} returned {type(given).__name__}, where a list of a number for each of "
            f"{len(answers)} answers is expected"
        )
    if len(given) != len(answers):
        raise ValueError(f"{name} returned {len(given)} scores for {len(answers)} answers")
    return [_finite(name, place, score) for place, score in enumerate(given)]


async def _awaited(given: Awaitable[Scores]) -> Scores:
    return await given


def _finite(name: str, place: int, score: object) -> float:
    if not isinstance(score, SupportsFloat) or not abs(float(score)) <= LARGEST_REWARD:
        raise ValueError(
            f"{name} returned {score!r:.60} for answer {place}: give a finite number, of "
            f"{LARGEST_REWARD:g} at most"
        )
    return float(score)
