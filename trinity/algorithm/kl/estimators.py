"""The estimators by name; each takes log-probabilities of the policy and of the reference, [B, T].

k1 is unbiased in value, k2 in gradient, k3 is never negative; see joschu.net/blog/kl-approx.html.
"""

from collections.abc import Callable

import torch

KlEstimator = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

LARGEST_LOG_RATIO = 20.0
LARGEST_KL = 10.0


def k1(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor) -> torch.Tensor:
    """The log-ratio."""
    return logprobs_BT - reference_BT


def k2(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor) -> torch.Tensor:
    """Half the squared log-ratio."""
    return 0.5 * (logprobs_BT - reference_BT).square()


def k3(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor) -> torch.Tensor:
    """The ratio's distance from its tangent."""
    difference_BT = reference_BT - logprobs_BT
    return difference_BT.exp() - 1 - difference_BT


def low_var_kl(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor) -> torch.Tensor:
    """k3, bounded."""
    difference_BT = (reference_BT - logprobs_BT).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    return (difference_BT.exp() - 1 - difference_BT).clamp(-LARGEST_KL, LARGEST_KL)


def absolute(logprobs_BT: torch.Tensor, reference_BT: torch.Tensor) -> torch.Tensor:
    """The absolute log-ratio."""
    return (logprobs_BT - reference_BT).abs()


KL_ESTIMATORS: dict[str, KlEstimator] = {
    "k1": k1,
    "k2": k2,
    "k3": k3,
    "low_var_kl": low_var_kl,
    "abs": absolute,
}
