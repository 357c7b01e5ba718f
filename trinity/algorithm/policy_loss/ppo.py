"""PPO's clipped objective with dual clipping."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss

LARGEST_LOG_RATIO = 20.0


def ppo(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_ratio_c: float = 3.0,
) -> PolicyLoss:
    """The larger of the plain and the clipped loss; for negative advantages at most c times |A|."""
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    log_ratio_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
    log_ratio_BT = log_ratio_BT.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio_BT = log_ratio_BT.exp()
    advantages_BT = inputs.advantages_BT
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    upper_BT = torch.maximum(plain_BT, clipped_BT)
    bound_BT = -advantages_BT * clip_ratio_c
    negative_BT = advantages_BT < 0
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(negative_BT, torch.minimum(upper_BT, bound_BT), upper_BT),
        metrics={
            "pg_clipfrac": clipped_BT > plain_BT,
            "pg_clipfrac_lower": (upper_BT > bound_BT) & negative_BT,
            "ppo_kl": -log_ratio_BT,
        },
    )
