"""Changes rewards by numbers that workflows recorded with their samples."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from trinity.algorithm.advantage.needs import Arguments, Needs, needs
from trinity.algorithm.advantage.samples import FloatVector
from trinity.errors import UserError
from trinity.operators.rollouts import Changes, Rollouts
from trinity.runtime.json_values import JsonValue

_OPERATIONS: Mapping[str, Callable[[FloatVector, FloatVector], FloatVector]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MUL": np.multiply,
    "DIV": np.divide,
}
_FORM = "{stats_key: TEXT, op_type: ADD|SUB|MUL|DIV, weight: NUMBER}"


@dataclass(frozen=True, slots=True)
class _Rule:
    key: str
    operation: str
    weight: float

    def applied(self, rewards_N: FloatVector, numbers_N: FloatVector) -> FloatVector:
        others_N = self.weight * numbers_N
        is_known_N = np.isfinite(others_N)
        if self.operation == "DIV":
            is_known_N &= others_N != 0
        others_N = np.where(is_known_N, others_N, 1.0)
        return np.where(is_known_N, _OPERATIONS[self.operation](rewards_N, others_N), rewards_N)


def _needs(arguments: Arguments) -> Needs:
    rules = _rules(arguments.get("reward_shaping_configs"))
    return Needs(numbers=tuple(dict.fromkeys(rule.key for rule in rules)))


@needs(_needs)
def reward_shaping_mapper(
    rollouts: Rollouts, *, reward_shaping_configs: list[dict[str, JsonValue]]
) -> Changes:
    """r = r op weight x, one rule after the other, where x is the number under stats_key.

    x is a number of the sample's info, metrics, reward parts or arrays; if it is missing, or DIV
    would divide by 0, the reward stays. Metric: `reward_diff`, the mean change of a group.
    """
    rewards_N = rollouts.rewards
    for rule in _rules(reward_shaping_configs):
        rewards_N = rule.applied(rewards_N, rollouts.numbers[rule.key])
    differences_G = rollouts.group_means(rewards_N - rollouts.rewards)
    return Changes(rewards=rewards_N, metrics={"reward_diff": differences_G})


def _rules(configs: JsonValue | list[dict[str, JsonValue]]) -> list[_Rule]:
    """Reads the rules; raises UserError with a line for each mistake."""
    if not isinstance(configs, list):
        raise UserError(f"reward_shaping_configs must be a list of {_FORM}")
    if wrong := [text for i, config in enumerate(configs) for text in _mistakes(i, config)]:
        raise UserError("\n".join(wrong))
    return [_rule(config) for config in configs if isinstance(config, dict)]


def _mistakes(number: int, config: JsonValue) -> Iterator[str]:
    where = f"reward_shaping_configs[{number}]"
    if not isinstance(config, dict) or set(config) - {"stats_key", "op_type", "weight"}:
        yield f"{where} is {config!r}, where {_FORM} is expected"
        return
    key, kind = config.get("stats_key"), config.get("op_type", "ADD")
    weight = config.get("weight", 1)
    if not isinstance(key, str) or not key:
        yield f"{where}.stats_key is {key!r}: name what lies in the samples' info"
    if not isinstance(kind, str) or kind.upper() not in _OPERATIONS:
        yield f"{where}.op_type is {kind!r}: give one of {', '.join(_OPERATIONS)}"
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        yield f"{where}.weight is {weight!r}, not a number"


def _rule(config: dict[str, JsonValue]) -> _Rule:
    kind, weight = str(config.get("op_type", "ADD")), config.get("weight", 1)
    assert isinstance(weight, int | float), "it was looked at before"
    return _Rule(str(config["stats_key"]), kind.upper(), float(weight))
