"""Ratios between the policy in training and the old one."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs

LARGEST_LOG_RATIO = 20.0


def log_ratio(inputs: PolicyInputs) -> torch.Tensor:
    """log p - log p_old of each token, [B, T], clamped to [-20, 20]; no gradient outside."""
    difference_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
    return difference_BT.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def row_means(values_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
    """Mean over each row's trained tokens, [B, 1]; 0 for a row without any."""
    sums_B1 = torch.where(mask_BT, values_BT, 0.0).sum(-1, keepdim=True)
    return sums_B1 / mask_BT.sum(-1, keepdim=True).clamp(min=1)


def both_bounds(clip_range: float, low: float | None, high: float | None) -> tuple[float, float]:
    """Returns the two clip ranges; each defaults to `clip_range`."""
    return clip_range if low is None else low, clip_range if high is None else high
