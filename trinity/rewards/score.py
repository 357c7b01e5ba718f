"""Validates scores, for every kind of reward and workflow.

A score is a finite number, or a dict with at least one number by name. Booleans count as 1 and 0;
texts, None, NaN and numbers that training cannot represent are not scores.
"""

import numbers
from collections.abc import Mapping
from typing import SupportsFloat, TypeGuard

from trinity.types import LARGEST_REWARD

SCORE = "score"
"""The part that is the reward alone."""
REWARD_FAILED = "reward_failed"
"""The metric of an answer that has reward 0 because its reward failed."""
_OTHERWISE = f"name the reward {SCORE!r} to return something else beside it"


class BadReward(TypeError):
    """A reward returned an invalid score."""


def as_parts(returned: object, reward: str, *, sums_all: bool = False) -> dict[str, float]:
    """Returns the numbers of a score by name; a mere number is named after the reward.

    With a part `score`, parts that are no numbers are left out, and others may be any numbers,
    unless `sums_all`: then the reward is the sum of all.

    Raises: BadReward for an invalid score.
    """
    giver = f"the reward {reward}"
    if not isinstance(returned, Mapping) and _says_number(returned):
        name = reward.rpartition(".")[2]
        return {name: _finite(_number(returned, name, giver), name, giver)}
    if not isinstance(returned, Mapping) or not returned:
        raise BadReward(
            f"the reward {reward} returned {_described(returned)}, neither a dict of "
            "named numbers nor a number: return one of these on every path"
        )
    if REWARD_FAILED in returned:
        raise BadReward(
            f"the reward {reward} returned a part `{REWARD_FAILED}`, by which rewards that "
            "failed are counted: give the part another name"
        )
    has_score = SCORE in returned and not sums_all
    found: dict[str, float] = {}
    for key, value in returned.items():
        name, is_part = str(key), not has_score or key == SCORE
        if is_part and not _says_number(value):
            raise BadReward(
                f"the reward {reward} returned {value!r:.60} as {name!r}, which is no number: "
                + ("return a number by this name" if name == SCORE or sums_all else _OTHERWISE)
            )
        if _says_number(value):
            number = _number(value, name, giver)
            found[name] = _finite(number, name, giver) if is_part else number
    return found


def as_reward(value: object, giver: str) -> float | None:
    """Returns the reward that a workflow set; None means that it comes later, as feedback.

    Raises: BadReward for anything but a finite number.
    """
    if value is None:
        return None
    if not _says_number(value):
        raise BadReward(
            f"{giver} gave the reward {value!r:.60}, which is no number: set a number, or None for "
            "one that comes later, by `trinity feedback`"
        )
    return _finite(_number(value, "reward", giver), "reward", giver)


def _says_number(value: object) -> TypeGuard[SupportsFloat]:
    """Returns true for a value that supports conversion; cheap for plain numbers."""
    return isinstance(value, float | int | SupportsFloat)


def _number(value: SupportsFloat, name: str, giver: str) -> float:
    """Converts what says that it can be: arrays and very large numbers cannot always."""
    try:
        if isinstance(value, numbers.Complex) and not isinstance(value, numbers.Real):
            raise TypeError("it is complex")
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise BadReward(
            f"{giver} returned {type(value).__name__} {value!r:.60} as "
            f"{name!r}, which is no number ({error!s:.80}): return one number by this name"
        ) from error


def _finite(value: float, name: str, giver: str) -> float:
    if abs(value) <= LARGEST_REWARD:
        return value
    raise BadReward(
        f"{giver} returned {value} as {name!r}: return a finite number, of "
        f"{LARGEST_REWARD:g} at most, which can be trained on"
    )


def _described(parts: object) -> str:
    if parts is None:
        return "nothing"
    kind = type(parts).__name__
    if isinstance(parts, Mapping):
        return f"an empty {kind}"
    return f"{kind} {parts!r:.60}" if isinstance(parts, str) else kind
