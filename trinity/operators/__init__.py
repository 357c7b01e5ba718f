"""Experience operators by name: plain numpy, since the buffer calls them before the advantage."""

from typing import TYPE_CHECKING

from trinity.plugins import Registry

if TYPE_CHECKING:
    from trinity.operators.rollouts import OperatorFn

_HERE = "trinity.operators"
BUILT_IN = {
    name: f"{_HERE}.{name}.{name}"
    for name in (
        "dapo_dynamic_sampling",
        "data_juicer",
        "invalid_reward_filter",
        "mask_response_truncated",
        "overlong_penalty",
        "group_mean_filter",
        "pass_rate_calculator",
        "reward_filter",
        "reward_shaping_mapper",
        "reward_std_filter",
    )
}
"""Operators of this package by name; any other name is a user's."""

OPERATORS: "Registry[OperatorFn]" = Registry(
    "experience operator", BUILT_IN, adapter="trinity.rft.buffer.operators.adapting.adapt_operator"
)
