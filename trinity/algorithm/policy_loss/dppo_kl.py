"""DPPO by divergence: leaves out tokens whose probability moved too far."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clip_bounds, inside_trust_region

EPSILON = 1e-8


def dppo_kl(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_ratio_c: float = 20.0,
) -> PolicyLoss:
    """-A sg(min(r, c)) log p where p went against A, or no further than the range; all [B, T].

    The distance is KL(old || new) of two outcomes: the token, or any other. The range is `high`
    where A > 0, else `low`. https://arxiv.org/abs/2602.04879.
    """
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    logprobs_BT = inputs.logprobs_BT.detach()
    probs_BT, old_BT = logprobs_BT.exp(), inputs.old_logprobs_BT.exp()
    of_others_BT = (_of_others(old_BT) / _of_others(probs_BT)).log()
    divergence_BT = old_BT * (inputs.old_logprobs_BT - logprobs_BT) + (1 - old_BT) * of_others_BT
    inside_BT = torch.where(
        inputs.advantages_BT > 0,
        (divergence_BT <= high) | (probs_BT <= old_BT),
        (divergence_BT <= low) | (probs_BT >= old_BT),
    )
    return inside_trust_region(inputs, inside_BT, clip_ratio_c)


def _of_others(probs_BT: torch.Tensor) -> torch.Tensor:
    """Returns the probability of all other tokens, never 0."""
    return (1 - probs_BT).clamp(min=0) + EPSILON
