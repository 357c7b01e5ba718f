"""GMPO: the geometric mean of the tokens' ratios, each clipped first."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import LARGEST_LOG_RATIO, clip_bounds, row_means


def geo_mean(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
) -> PolicyLoss:
    """-A exp(mean_t l) of each row, [B]; A is the mean of the row's advantages.

    l = log p - log p_old, clipped to [-low, high] on the side that A pushes towards; its mean is at
    most 20.
    Zhao et al., https://arxiv.org/abs/2507.20673.
    """
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    log_ratio_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
    clipped_BT = log_ratio_BT.clamp(-low, high)
    sign_BT = inputs.advantages_BT.sign()
    used_BT = sign_BT * torch.minimum(sign_BT * log_ratio_BT, sign_BT * clipped_BT)
    ratio_B1 = row_means(used_BT, inputs.mask_BT).clamp(max=LARGEST_LOG_RATIO).exp()
    advantages_B1 = row_means(inputs.advantages_BT, inputs.mask_BT)
    is_clipped_BT = log_ratio_BT != clipped_BT
    return PolicyLoss(
        name="pg_loss",
        loss_B=(-advantages_B1 * ratio_B1).squeeze(-1),
        metrics={
            "pg_clipfrac": is_clipped_BT & (inputs.advantages_BT > 0),
            "pg_clipfrac_lower": is_clipped_BT & (inputs.advantages_BT < 0),
            "ppo_kl": -log_ratio_BT,
        },
    )
