"""Priorities as Trinity-RFT has them: a class that takes experiences with one version and count.

@PRIORITY_FUNC.register_module("newest")
class Newest(PriorityFunction):
    def __call__(self, item): return float(item[0].info["model_version"]), True

    @classmethod
    def default_config(cls): return {}
"""

from abc import ABC, abstractmethod
from typing import Any

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.plugins import Registry
from trinity.user_code.adapted_part import AdaptedPart

PRIORITY_FUNC: Registry[Any] = PRIORITIES


class PriorityFunction(ABC):
    """Base of priorities that were written for Trinity-RFT."""

    @abstractmethod
    def __call__(self, item: list[Any]) -> tuple[float, bool]:
        """Returns a priority, and False if the experiences are never to be used again."""

    @classmethod
    def default_config(cls) -> dict[str, Any]:
        """Returns the defaults of the constructor's arguments."""
        return {}


class WaitingExperience:
    """A sample that waits for a batch, as such a class looks at it."""

    def __init__(self, candidate: Candidate) -> None:
        self.info: dict[str, Any] = {
            "model_version": candidate.model_version,
            "use_count": candidate.use_count,
        }
        self.reward = candidate.reward
        self.advantage = candidate.advantage


class AdaptedPriority(AdaptedPart):
    """A class of a priority as a priority function."""

    input_type = "Candidate"
    return_type = "float | None"
    defaults_method = "default_config"

    def __call__(self, candidate: Candidate, /, **arguments: Any) -> float | None:
        """Returns the priority; None where the class never wants the sample again."""
        priority, is_kept = self.instance(arguments)([WaitingExperience(candidate)])
        return float(priority) if is_kept else None


def adapt_priority(name: str, source: type) -> AdaptedPriority | type:
    """Returns the class as a part; one that is no priority stays as it is."""
    del name
    if not issubclass(source, PriorityFunction):
        return source
    return AdaptedPriority(source)
