"""Inputs and results of users' functions as JSON, between the buffer and their process."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.json_codec import (
    Message,
    advantages_from_json,
    advantages_to_json,
    samples_from_json,
    samples_to_json,
)
from trinity.algorithm.advantage.samples import Advantages, FloatVector, Samples
from trinity.operators import OPERATORS
from trinity.operators.rollouts import Changes, Content, Rollouts
from trinity.plugins import Registry
from trinity.types import JsonObject, JsonValue

READ = "read"
"""The key of a line by which a function's process asks for whole samples, by their places."""
PRIORITY = "priority"
"""The kind of a request for priorities, which has candidates instead of samples."""
UserFunctionKindName = Literal["advantage", "operator"]


def rollouts_to_json(rollouts: Rollouts) -> JsonObject:
    """Converts rollouts, with a list for each array."""
    return {
        "samples": samples_to_json(rollouts),
        "is_truncated": rollouts.is_truncated.tolist(),
        "has_reward": rollouts.has_reward.tolist(),
        "response_lengths": rollouts.response_lengths.tolist(),
        "numbers": {key: values.tolist() for key, values in rollouts.numbers.items()},
        "contents": [asdict(content) for content in rollouts.contents],
    }


def rollouts_from_json(message: Message) -> Rollouts:
    """Reads the output of `rollouts_to_json`."""
    return Rollouts.of(
        samples_from_json(message["samples"]),
        is_truncated=np.array(message["is_truncated"], dtype=np.bool_),
        has_reward=np.array(message["has_reward"], dtype=np.bool_),
        response_lengths=np.array(message["response_lengths"], dtype=np.int64),
        numbers=_arrays(message["numbers"]),
        contents=[Content(**content) for content in message["contents"]],
    )


def advantage_input_to_json(samples: Samples) -> JsonObject:
    """Converts samples, with their recorded contents if the advantage requested them."""
    if isinstance(samples, Rollouts) and samples.contents:
        return rollouts_to_json(samples)
    return samples_to_json(samples)


def advantage_input_from_json(message: Message) -> Samples:
    """Reads the output of `advantage_input_to_json`."""
    return rollouts_from_json(message) if "samples" in message else samples_from_json(message)


def changes_to_json(changes: Changes) -> JsonObject:
    """Converts changes, with a list for each array or anything that numpy makes an array of."""
    return {
        "left_out": _listed(changes.left_out, np.bool_),
        "reason": str(changes.reason),
        "masked": _listed(changes.masked, np.bool_),
        "rewards": _listed(changes.rewards, np.float64),
        "numbers": _named(changes.numbers),
        "metrics": _named(changes.metrics),
    }


def changes_from_json(message: Message) -> Changes:
    """Reads the output of `changes_to_json`."""
    left_out, masked, rewards = (message[name] for name in ("left_out", "masked", "rewards"))
    return Changes(
        left_out=None if left_out is None else np.array(left_out, dtype=np.bool_),
        reason=message["reason"],
        masked=None if masked is None else np.array(masked, dtype=np.bool_),
        rewards=None if rewards is None else np.array(rewards, dtype=np.float64),
        numbers=_arrays(message["numbers"]),
        metrics=_arrays(message["metrics"]),
    )


def _named(arrays: Mapping[str, FloatVector]) -> JsonObject:
    return {str(name): _listed(array, np.float64) for name, array in arrays.items()}


def _arrays(message: Message) -> dict[str, FloatVector]:
    return {name: np.array(values, dtype=np.float64) for name, values in message.items()}


def _listed(values: object, kind: type[np.generic]) -> JsonValue:
    listed: JsonValue = None if values is None else np.asarray(values, dtype=kind).tolist()
    return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFunctionKind:
    """The input and result of functions of one kind."""

    registry: Registry[Callable[..., Any]]
    result_type: type
    input_to_json: Callable[[Any], JsonObject]
    input_from_json: Callable[[Message], Samples]
    result_to_json: Callable[[Any], JsonObject]
    result_from_json: Callable[[Message], Any]

    def call(self, name: str, value: object, arguments: Mapping[str, Any]) -> Any:
        """Calls a function; raises TypeError for a result of another type, or its own error."""
        answer = self.registry.get(name)(value, **arguments)
        if not isinstance(answer, self.result_type):
            raise TypeError(
                f"it gave {type(answer).__name__}, where {self.result_type.__name__} of "
                f"{self.result_type.__module__} is expected"
            )
        return answer


USER_FUNCTION_KINDS: Mapping[UserFunctionKindName, UserFunctionKind] = {
    "advantage": UserFunctionKind(
        registry=ADVANTAGES,
        result_type=Advantages,
        input_to_json=advantage_input_to_json,
        input_from_json=advantage_input_from_json,
        result_to_json=advantages_to_json,
        result_from_json=advantages_from_json,
    ),
    "operator": UserFunctionKind(
        registry=OPERATORS,
        result_type=Changes,
        input_to_json=rollouts_to_json,
        input_from_json=rollouts_from_json,
        result_to_json=changes_to_json,
        result_from_json=changes_from_json,
    ),
}
