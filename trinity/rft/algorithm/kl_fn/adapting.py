"""Calls KL estimators of Trinity-RFT, and exposes the built-in ones as Trinity-RFT's classes."""

from functools import lru_cache
from typing import Any

import torch

from trinity.algorithm.kl import DIVERGENCES
from trinity.rft.algorithm.kl_fn import KLFn
from trinity.user_code.adapted_part import AdaptedPart, refuse_override

REPLACED = ("update_kl_coef", "apply_kl_penalty_to_reward", "calculate_kl_loss")
"""Methods in whose place the trainer's own are called."""


class AdaptedKl(AdaptedPart):
    """A class of an estimator as an estimator."""

    input_type = "KlInputs"
    return_type = "torch.Tensor"

    def __call__(
        self,
        logprobs_BT: torch.Tensor,
        reference_BT: torch.Tensor,
        old_BT: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the divergence of each token, [B, T]."""
        estimator: KLFn = self.instance({})
        divergence_BT: torch.Tensor = estimator.calculate_kl(logprobs_BT, reference_BT, old_BT)
        return divergence_BT


def adapted_kl(name: str, source: type) -> AdaptedKl | type:
    """Adapts a class of Trinity-RFT; a class that is no estimator is returned unchanged.

    Raises: UserError when it defines a method that the trainer never calls, or has required
    arguments.
    """
    del name
    if not issubclass(source, KLFn):
        return source
    for method in REPLACED:
        refuse_override(
            source,
            method,
            KLFn,
            "define `calculate_kl` alone; coefficients are `kl_coef`, "
            "`adaptive`, `target_kl` and `horizon`",
        )
    adapted = AdaptedKl(source)
    adapted.instance({})
    return adapted


class _BuiltInKl(KLFn):
    """A built-in estimator."""

    function_name: str

    def calculate_kl(self, logprob: Any, ref_logprob: Any, old_logprob: Any = None) -> Any:
        """Returns the divergence of each token."""
        return DIVERGENCES.built_in(self.function_name)(logprob, ref_logprob, old_logprob)


@lru_cache
def kl_class(name: str, function: str) -> type[KLFn]:
    """Returns the class of a built-in estimator."""
    doc = f"The estimator `{function}` as a class of Trinity-RFT."
    namespace = {"function_name": function, "__doc__": doc, "__module__": KLFn.__module__}
    made = type(name, (_BuiltInKl,), namespace)
    assert issubclass(made, KLFn)
    return made
