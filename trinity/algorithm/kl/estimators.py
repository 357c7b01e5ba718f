"""The estimators of KL(policy || reference) by name, per token; all arguments are [B, T].

Each takes log-probabilities of the policy, of the reference, and of the rollout policy (`old`),
which only `corrected_k3` uses. k1 is unbiased in value, k2 in gradient, k3 in value and never
negative; see http://joschu.net/blog/kl-approx.html.
"""

from collections.abc import Callable
from typing import Protocol

import torch

LARGEST_LOG_RATIO = 20.0
LARGEST_KL = 10.0
LARGEST_CORRECTION = 2.0


class KlEstimator(Protocol):
    """Estimates the divergence of the policy from the reference per token, with a gradient."""

    def __call__(
        self,
        logprobs_BT: torch.Tensor,
        reference_BT: torch.Tensor,
        old_BT: torch.Tensor | None = None,
        /,
    ) -> torch.Tensor: ...


def none(
    logprobs_BT: torch.Tensor,
    reference_BT: torch.Tensor | None = None,
    old_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """0; with this name callers need no reference."""
    del reference_BT, old_BT
    return torch.zeros_like(logprobs_BT)


def k1(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """log p - log q."""
    del old_BT
    return logprobs_BT - reference_BT


def k2(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """(log p - log q)^2 / 2."""
    del old_BT
    return 0.5 * (logprobs_BT - reference_BT).square()


def k3(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """e^d - 1 - d with d = log q - log p, clamped to [-20, 20]."""
    del old_BT
    difference_BT = (reference_BT - logprobs_BT).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return difference_BT.expm1() - difference_BT


def low_var_kl(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """k3, at most 10."""
    del old_BT
    return k3(logprobs_BT, reference_BT).clamp(-LARGEST_KL, LARGEST_KL)


def absolute(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """|log p - log q|."""
    del old_BT
    return (logprobs_BT - reference_BT).abs()


def corrected_k3(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """clip(p / p_old, 0, 2) * k3: unbiased, also in gradient, for tokens of another policy.

    DeepSeek-V3.2, https://arxiv.org/abs/2512.02556.
    """
    divergence_BT = k3(logprobs_BT, reference_BT)
    if old_BT is None:
        return divergence_BT
    log_ratio_BT = (logprobs_BT - old_BT).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return log_ratio_BT.exp().clamp(0.0, LARGEST_CORRECTION) * divergence_BT


def k1_plus(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """The value of k1 with the gradient of k2."""
    del old_BT
    return _with_gradient_of_k2(k1, logprobs_BT, reference_BT)


def k3_plus(
    logprobs_BT: torch.Tensor, reference_BT: torch.Tensor, old_BT: torch.Tensor | None = None
) -> torch.Tensor:
    """The value of low_var_kl with the gradient of k2."""
    del old_BT
    return _with_gradient_of_k2(low_var_kl, logprobs_BT, reference_BT)


def _with_gradient_of_k2(
    value: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    logprobs_BT: torch.Tensor,
    reference_BT: torch.Tensor,
) -> torch.Tensor:
    carrier_BT = k2(logprobs_BT, reference_BT)
    return carrier_BT - carrier_BT.detach() + value(logprobs_BT, reference_BT).detach()


KL_ESTIMATORS: dict[str, KlEstimator] = {
    "none": none,
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_var_kl": low_var_kl,
    "abs": absolute,
    "corrected_k3": corrected_k3,
    "k1+": k1_plus,
    "k3+": k3_plus,
}
