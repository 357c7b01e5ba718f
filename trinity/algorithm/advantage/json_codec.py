"""Samples and advantages as JSON, between the buffer and the process of users' functions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.algorithm.advantage.samples import Advantages, FloatVector, IntVector, Samples
from trinity.types import JsonObject

Message = dict[str, Any]


def samples_to_json(samples: Samples) -> JsonObject:
    """Converts each array to a list."""
    return {
        "rewards": samples.rewards.tolist(),
        "groups": samples.groups.tolist(),
        "runs": samples.runs.tolist(),
        "steps": samples.steps.tolist(),
        "lots": samples.lots.tolist(),
        "mean_logprobs": samples.mean_logprobs.tolist(),
        "step_rewards": samples.step_rewards.tolist(),
        "states": samples.states.tolist(),
    }


def samples_from_json(message: Message) -> Samples:
    """Reads the output of `samples_to_json`."""
    return Samples(
        rewards=_floats(message["rewards"]),
        groups=_integers(message["groups"]),
        runs=_integers(message["runs"]),
        steps=_integers(message["steps"]),
        lots=_floats(message["lots"]),
        mean_logprobs=_floats(message["mean_logprobs"]),
        step_rewards=_floats(message["step_rewards"]),
        states=_integers(message["states"]),
    )


def advantages_to_json(advantages: Advantages) -> JsonObject:
    """Converts each array that is set to a list; any array-like is accepted."""
    left_out, copies_of = advantages.left_out, advantages.copies_of
    return {
        "values": _floats(advantages.values).tolist(),
        "left_out": None if left_out is None else np.asarray(left_out, dtype=np.bool_).tolist(),
        "reason": str(advantages.reason),
        "copies_of": None if copies_of is None else _integers(copies_of).tolist(),
        "metrics": {
            str(name): _floats(values).tolist() for name, values in advantages.metrics.items()
        },
    }


def advantages_from_json(message: Message) -> Advantages:
    """Reads the output of `advantages_to_json`."""
    left_out, copies_of = message["left_out"], message["copies_of"]
    return Advantages(
        _floats(message["values"]),
        left_out=None if left_out is None else np.array(left_out, dtype=np.bool_),
        reason=message["reason"],
        copies_of=None if copies_of is None else _integers(copies_of),
        metrics={name: _floats(values) for name, values in message["metrics"].items()},
    )


def _floats(values: npt.ArrayLike) -> FloatVector:
    return np.asarray(values, dtype=np.float64)


def _integers(values: npt.ArrayLike) -> IntVector:
    return np.asarray(values, dtype=np.int64)
