"""Trinity-RFT's sample strategies: classes that stand for a built-in strategy.

@SAMPLE_STRATEGY.register_module("half_experts")
class HalfExperts(MixSampleStrategy):
    @classmethod
    def default_args(cls): return {"expert_data_ratio": 0.5}

The buffer composes a batch, once and for good, so a class that reads rows itself is refused.
"""

from abc import ABC, abstractmethod
from typing import Any

from trinity.algorithm.sampling import SAMPLE_STRATEGIES
from trinity.errors import UserError
from trinity.plugins import Registry
from trinity.user_code.adapted_part import AdaptedPart, refuse_override

SAMPLE_STRATEGY: Registry[Any] = SAMPLE_STRATEGIES
READING = ("sample", "state_dict", "load_state_dict")
"""Methods in whose place the buffer's rules are used."""


class SampleStrategy(ABC):
    """Base of strategies that were written for Trinity-RFT."""

    def __init__(self, buffer_config: Any, **kwargs: Any) -> None:
        self.buffer_config = buffer_config
        self.arguments = kwargs

    @abstractmethod
    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """Returns a batch, metrics and examples."""

    @classmethod
    @abstractmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the arguments."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns where reading stands."""

    @abstractmethod
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from there."""


class DefaultSampleStrategy(SampleStrategy):
    """All rows that the explorer makes, in its order."""

    function_name = "default"

    async def sample(self, step: int, **kwargs: Any) -> tuple[list[Any], dict[str, Any], list[Any]]:
        """Stands for the buffer's rule."""
        del step, kwargs
        raise UserError("the buffer composes batches: a sample strategy is not called")

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the arguments."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty dict: the state is in the database."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignores the state: it is in the database."""


class WarmupSampleStrategy(DefaultSampleStrategy):
    """An old name of `default`."""


class StalenessControlSampleStrategy(DefaultSampleStrategy):
    """Rows whose weights are not too old."""

    function_name = "staleness_control"


class MixSampleStrategy(DefaultSampleStrategy):
    """Rows of data among rollouts."""

    function_name = "mix"

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the arguments."""
        return {"expert_data_ratio": 0.5, "sft_dataset_name": "sft_dataset"}


def representative_sample(experiences: list[Any]) -> list[dict[str, Any]]:
    """Returns the experiences with the least and the greatest reward, to be shown."""
    scored = [exp for exp in experiences if exp.reward is not None]
    chosen = scored or experiences[:1]
    ends = [min(chosen, key=_reward), max(chosen, key=_reward)] if scored else chosen
    return [
        {"prompt": exp.prompt_text, "response": exp.response_text, "reward": exp.reward}
        for exp in ends
    ]


def _reward(experience: Any) -> float:
    return float(experience.reward)


class AdaptedStrategy(AdaptedPart):
    """A class that stands for a built-in strategy."""

    filled_in = frozenset({"buffer_config"})
    input_type = ""
    return_type = "SampleStrategy"

    def __init__(self, source: type[DefaultSampleStrategy]) -> None:
        super().__init__(source)
        self.stands_for = source.function_name


def adapt_strategy(name: str, source: type) -> AdaptedStrategy:
    """Returns the strategy that the class stands for.

    Raises: UserError when it reads rows itself.
    """
    advice = (
        "the buffer composes each batch and records it; use `default`, `staleness_control` or "
        "`mix` with their arguments, or filter with an operator"
    )
    if not issubclass(source, DefaultSampleStrategy):
        raise UserError(
            f"the sample strategy {source.__name__} of `{name}` reads rows itself, which is not "
            f"called here: {advice}"
        )
    for method in READING:
        refuse_override(source, method, DefaultSampleStrategy, advice)
    return AdaptedStrategy(source)
