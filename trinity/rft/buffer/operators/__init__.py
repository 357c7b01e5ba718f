"""Experience operators as Trinity-RFT has them: a class whose `process` takes a step's experiences.

@EXPERIENCE_OPERATORS.register_module("good_only")
class GoodOnly(ExperienceOperator):
    def process(self, exps):
        return [exp for exp in exps if exp.reward > 0], {}
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trinity.operators import OPERATORS
from trinity.plugins import Registry

EXPERIENCE_OPERATORS: Registry[Any] = OPERATORS
_BUILT_IN: Mapping[str, str] = {
    "DAPODynamicSamplingFilter": "dapo_dynamic_sampling",
    "InvalidRewardFilter": "invalid_reward_filter",
    "MaskResponseTruncatedOperator": "mask_response_truncated",
    "PassRateCalculator": "pass_rate_calculator",
    "RewardFilter": "reward_filter",
    "RewardSTDFilter": "reward_std_filter",
    "RewardShapingMapper": "reward_shaping_mapper",
}


class ExperienceOperator(ABC):
    """Base of operators that were written for Trinity-RFT."""

    @abstractmethod
    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the experiences that stay, changed or not, and metrics."""

    def close(self) -> None:  # noqa: B027 - users may define it
        """Releases the operator's resources."""


class ExperienceOperatorV1(ABC):
    """Base of asynchronous operators that were written for Trinity-RFT."""

    auxiliary_models: Mapping[str | int, list[Any]] = {}

    def set_auxiliary_model(
        self, auxiliary_models: Mapping[str | int, list[Any]] | None = None
    ) -> None:
        """Sets the models, an empty mapping here."""
        self.auxiliary_models = auxiliary_models or {}

    async def prepare(self) -> None:  # noqa: B027 - users may define it
        """Prepares the operator, once."""

    @abstractmethod
    async def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Returns the experiences that stay, changed or not, and metrics."""

    async def close(self) -> None:  # noqa: B027 - users may define it
        """Releases the operator's resources."""


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own, made on demand, as it imports numpy."""
    if (function := _BUILT_IN.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from trinity.rft.buffer.operators.adapting import operator_class

    return operator_class(name, function)
