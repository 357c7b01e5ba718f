"""Ratios between the policy in training and the old one, and losses clipped by them."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss

LARGEST_LOG_RATIO = 20.0
LARGEST_SEQUENCE_LOG_RATIO = 10.0


def log_ratio(inputs: PolicyInputs) -> torch.Tensor:
    """log p - log p_old of each token, [B, T], clamped to [-20, 20]; no gradient outside."""
    difference_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
    return difference_BT.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def row_means(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean over each row's trained tokens, [B, 1]; 0 for a row without any."""
    sums_B1 = torch.where(mask_BT, values_BT, 0.0).sum(-1, keepdim=True)
    return sums_B1 / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def clip_bounds(clip_range: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Returns the two clip ranges; each defaults to `clip_range`."""
    return clip_range if low is None else low, clip_range if high is None else high


def mean_log_ratio(inputs: PolicyInputs) -> torch.Tensor:
    """Returns the mean over the row's tokens of log p - log p_old, [B, 1]."""
    return row_means(inputs.logprobs_BT - inputs.old_logprobs_BT, inputs.mask_BT)


def clipped_by_sequence(
    inputs: PolicyInputs,
    *,
    log_ratio_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    low: float,
    high: float,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) of each token; no gradient where r > e^10."""
    ratio_BT = log_ratio_BT.clamp(max=LARGEST_SEQUENCE_LOG_RATIO).exp()
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    divergence_BT = inputs.old_logprobs_BT - inputs.logprobs_BT
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.maximum(plain_BT, clipped_BT),
        metrics={
            "pg_clipfrac": clipped_BT > plain_BT,
            "ppo_kl": divergence_BT,
            "ppo_kl_seq": row_means(divergence_BT, inputs.mask_BT).squeeze(-1),
        },
    )


def inside_trust_region(
    inputs: PolicyInputs, inside_BT: torch.Tensor, clip_ratio_c: float
) -> PolicyLoss:
    """-A sg(min(p / p_old, c)) log p where `inside_BT`, else 0; [B, T]."""
    log_ratio_BT = log_ratio(inputs).detach()
    ratio_BT = log_ratio_BT.exp()
    weights_BT = -inputs.advantages_BT * ratio_BT.clamp(max=clip_ratio_c)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(inside_BT, weights_BT * inputs.logprobs_BT, 0.0),
        metrics={
            "pg_clipfrac": ~inside_BT,
            "pg_clipfrac_lower": (ratio_BT > clip_ratio_c) & inside_BT,
            "ppo_kl": -log_ratio_BT,
        },
    )
