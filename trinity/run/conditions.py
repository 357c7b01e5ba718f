"""Parses conditions as a user writes them: `reward=0.5.. task=train:12 state=filtered`."""

import math
from collections.abc import Callable, Iterable
from typing import cast

from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2
from trinity.config.error_collector import did_you_mean
from trinity.errors import UserError

Filter = query_pb2.ExperienceFilter
RANGE = ".."
MOST_STEPS = 2**53
"""Stands for the end of an open range."""
HELP = (
    "Conditions that all must hold: reward=0.5 or 0.5..1 or ..0 or 1.., version=3..5, "
    "task=12 or train:12, taskset=NAME, explore_step=7, step=412 or 7..8 (train steps), "
    "state=filtered,excluded, finish=length, text=WORDS, id=UUID,UUID, kind=eval."
)


def parse_conditions(words: Iterable[str]) -> Filter:
    """Parses conditions into a filter.

    Raises: UserError naming the invalid condition.
    """
    found = Filter()
    seen: set[str] = set()
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not value:
            raise UserError(f"{word!r} is not a condition: write NAME=VALUE, such as reward=0..0.5")
        if name not in CONDITIONS:
            raise UserError(f"there is no condition {name!r}{did_you_mean(name, CONDITIONS)}")
        if name in seen:
            raise UserError(f"the condition {name} is given twice: all conditions must hold")
        seen.add(name)
        try:
            CONDITIONS[name](found, value)
        except ValueError as error:
            raise UserError(f"{word!r}: {error}") from None
    return found


def _reward(found: Filter, value: str) -> None:
    least, most = _bounds(value, _real)
    if least is not None:
        found.reward_min = least
    if most is not None:
        found.reward_max = most


def _version(found: Filter, value: str) -> None:
    least, most = _bounds(value, _whole)
    if least is not None:
        found.version_min = int(least)
    if most is not None:
        found.version_max = int(most)


def _bounds(value: str, number: Callable[[str], float]) -> tuple[float | None, float | None]:
    """Returns both ends, included; an open end is None."""
    if RANGE not in value:
        return number(value), number(value)
    least, _, most = value.partition(RANGE)
    if not least and not most:
        raise ValueError("give at least one end of the range")
    return number(least) if least else None, number(most) if most else None


def _real(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{text!r} is not a number")
    return number


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _task(found: Filter, value: str) -> None:
    taskset, _, index = value.rpartition(":")
    found.task_index = _whole(index)
    if taskset:
        found.taskset = taskset


def _taskset(found: Filter, value: str) -> None:
    found.taskset = value


def _explore_step(found: Filter, value: str) -> None:
    found.explore_step = _whole(value)


def _step(found: Filter, value: str) -> None:
    least, most = _bounds(value, _whole)
    if most is not None and least is not None and most < least:
        raise ValueError("the range ends before it begins")
    found.train_step = int(least) if least is not None else 1
    if RANGE in value:
        found.train_step_last = int(most) if most is not None else MOST_STEPS


def _states(found: Filter, value: str) -> None:
    known = dict(query_pb2.ExperienceState.items())
    for name in value.split(","):
        code = known.get(f"EXPERIENCE_STATE_{name.upper()}")
        if not code:
            raise ValueError(f"there is no state {name!r}: one of {_names(known)}")
        found.states.append(cast(query_pb2.ExperienceState, code))


def _finish(found: Filter, value: str) -> None:
    known = dict(experience_pb2.FinishReason.items())
    code = known.get(f"FINISH_REASON_{value.upper()}")
    if not code:
        raise ValueError(f"no sequence ends by {value!r}: one of {_names(known)}")
    found.finish_reason = cast(experience_pb2.FinishReason, code)


def _names(known: dict[str, int]) -> str:
    """Lists names such as `EXPERIENCE_STATE_RAW` as `raw`."""
    unspecified = min(known, key=lambda name: known[name])
    prefix = unspecified.removesuffix("UNSPECIFIED")
    return ", ".join(name.removeprefix(prefix).lower() for name in known if known[name])


def _text(found: Filter, value: str) -> None:
    found.text = value


def _ids(found: Filter, value: str) -> None:
    found.experience_ids.extend(value.split(","))


def _kind(found: Filter, value: str) -> None:
    kinds = {
        "train": buffer_pb2.ASSIGNMENT_KIND_TRAIN,
        "eval": buffer_pb2.ASSIGNMENT_KIND_EVAL,
    }
    if value not in kinds:
        raise ValueError("kind is train or eval")
    found.kind = kinds[value]


CONDITIONS: dict[str, Callable[[Filter, str], None]] = {
    "reward": _reward,
    "version": _version,
    "task": _task,
    "taskset": _taskset,
    "explore_step": _explore_step,
    "step": _step,
    "state": _states,
    "finish": _finish,
    "text": _text,
    "id": _ids,
    "kind": _kind,
}
