"""Selectors by Trinity-RFT's names: their files load, and a file that chooses one is refused.

The buffer draws rows in one transaction, so that draws can be repeated: code of a user that keeps
its own place in the data is not called.
"""

from typing import Any

from trinity.plugins import Registry

_HERE = "trinity.buffer.selector"


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


SELECTORS: Registry[type] = Registry(
    "selector",
    {
        "sequential": f"{_HERE}.SequentialSelector",
        "shuffle": f"{_HERE}.ShuffleSelector",
        "random": f"{_HERE}.RandomSelector",
        "offline_easy2hard": f"{_HERE}.OfflineEasy2HardSelector",
        "difficulty_based": f"{_HERE}.DifficultyBasedSelector",
    },
    adapter=f"{_HERE}.keep_selector",
)


def refusal(name: str) -> str:
    """Returns the reason why a user's selector is not used; empty for a name of ours."""
    if not SELECTORS.is_own(name):
        return ""
    return (
        f"`data_selector.selector_type: {name}` is a selector of your own, which is not called "
        "here: order the rows by a column with `offline_easy2hard`, or in a task pipeline"
    )
