"""Entropy losses as Trinity-RFT has them: a class that takes entropies and returns one number."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.plugins import Registry

ENTROPY_LOSS_FN: Registry[Any] = ENTROPY_LOSSES
_BUILT_IN: Mapping[str, str] = {
    "DefaultEntropyLossFn": "default",
    "DummyEntropyLossFn": "none",
    "MixEntropyLossFn": "mix",
}


class EntropyLossFn(ABC):
    """Base of entropy losses that were written for Trinity-RFT."""

    @abstractmethod
    def __call__(self, entropy: Any, action_mask: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the loss of these rows, one number, and metrics."""

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the constructor's arguments."""
        return {"entropy_coef": 0.0}


def adapt_entropy_loss(name: str, source: type) -> object:
    """Returns the class as a part; called when one is registered or named by its path."""
    from trinity.rft.algorithm.entropy_loss_fn.adapting import adapted_entropy_loss  # imports torch

    return adapted_entropy_loss(name, source)


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own, made on demand, as it imports torch."""
    if (function := _BUILT_IN.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from trinity.rft.algorithm.entropy_loss_fn.adapting import entropy_class

    return entropy_class(name, function)
