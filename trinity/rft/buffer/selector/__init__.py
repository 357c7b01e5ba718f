"""Selectors by Trinity-RFT's names: their files load, and a file that chooses one is refused.

The buffer draws rows in one transaction, so that draws can be repeated: code of a user that keeps
its own place in the data is not called.
"""

from typing import Any

from trinity.operators.selectors import SELECTORS as SELECTORS


class BaseSelector:
    """Base of selectors that were written for Trinity-RFT."""

    def __init__(self, data_source: Any, config: Any) -> None:
        self.data_source = data_source
        self.config = config

    def get_indices(self, batch_size: int, return_extra_info: bool = False) -> list[int]:
        """Returns the rows of a batch."""
        raise NotImplementedError

    def feedback(self, indices: list[int], values: list[float]) -> None:
        """Takes the rewards of rows."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Returns where drawing stands."""
        raise NotImplementedError

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from there."""
        raise NotImplementedError


class SequentialSelector(BaseSelector):
    """Stands for `sequential`."""


class ShuffleSelector(BaseSelector):
    """Stands for `shuffle`."""


class RandomSelector(BaseSelector):
    """Stands for `random`."""


class OfflineEasy2HardSelector(BaseSelector):
    """Stands for `offline_easy2hard`."""


class DifficultyBasedSelector(BaseSelector):
    """Stands for `difficulty_based`."""


def keep_selector(name: str, source: type) -> type:
    """Returns a class as it is: it is known, and never called."""
    del name
    return source
