"""Estimators of divergence as Trinity-RFT has them: classes that define `calculate_kl`.

@KL_FN.register_module("halved")
class Halved(KLFn):
    def calculate_kl(self, logprob, ref_logprob, old_logprob=None):
        return (logprob - ref_logprob).square() / 4

Coefficients, also adaptive ones, and the aggregation are the trainer's.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from trinity.algorithm.kl import DIVERGENCES
from trinity.plugins import Registry

KL_FN: Registry[Any] = DIVERGENCES
_BUILT_IN: Mapping[str, str] = {
    "AbsFn": "abs",
    "CorrectedK3Fn": "corrected_k3",
    "DummyKLFn": "none",
    "K1Fn": "k1",
    "K2Fn": "k2",
    "K3Fn": "k3",
    "LowVarKLFn": "low_var_kl",
}


class KLFn(ABC):
    """Base of estimators that were written for Trinity-RFT."""

    def __init__(
        self,
        adaptive: bool = False,
        kl_coef: float = 0.001,
        target_kl: float | None = None,
        horizon: float | None = None,
    ) -> None:
        self.adaptive = adaptive
        self.kl_coef = kl_coef
        self.target_kl = target_kl
        self.horizon = horizon

    @abstractmethod
    def calculate_kl(self, logprob: Any, ref_logprob: Any, old_logprob: Any = None) -> Any:
        """Returns the divergence of each token, [B, T]."""

    def update_kl_coef(self, current_kl: float, batch_size: int) -> None:  # noqa: B027 - users may define it
        """Marks a method that the trainer has in its own form."""

    def apply_kl_penalty_to_reward(self, experiences: Any) -> tuple[Any, dict[str, Any]]:
        """Marks a method that the trainer has in its own form."""
        raise NotImplementedError("the trainer subtracts the penalty itself")

    def calculate_kl_loss(
        self,
        logprob: Any,
        ref_logprob: Any,
        response_mask: Any,
        loss_agg_mode: str,
        old_logprob: Any = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Returns the aggregated divergence times its coefficient, and metrics."""
        from trinity.rft.algorithm.utils import aggregate_loss

        divergence = self.calculate_kl(logprob, ref_logprob, old_logprob)
        loss = aggregate_loss(divergence, response_mask, loss_agg_mode)
        metrics = {"kl_loss": loss.detach().item(), "kl_coef": self.kl_coef}
        return loss * self.kl_coef, metrics

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the defaults of the constructor's arguments."""
        return {"adaptive": False, "kl_coef": 0.001}


def adapt_kl(name: str, source: type) -> object:
    """Returns the class as a part; called when one is registered or named by its path."""
    from trinity.rft.algorithm.kl_fn.adapting import adapted_kl  # it imports torch

    return adapted_kl(name, source)


def __getattr__(name: str) -> Any:
    """Returns a class of Trinity-RFT's own, made on demand, as it imports torch."""
    if (function := _BUILT_IN.get(name)) is None:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from trinity.rft.algorithm.kl_fn.adapting import kl_class

    return kl_class(name, function)
