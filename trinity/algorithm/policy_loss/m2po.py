"""M2PO: PPO whose clip range is as wide as the update's log-ratios allow."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio
from trinity.errors import UserError


def m2po(
    inputs: PolicyInputs,
    *,
    m2_threshold: float = 0.04,
    least_range_low: float = 0.3,
    least_range_high: float = 0.5,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)) with r = p / p_old, all [B, T].

    low is 1 - e^-t and high e^t - 1, but never less than the two ranges given; t is the largest
    |log r| that keeps the second moment of the update's log-ratios within the threshold:
    trinity.algorithm.token_selection. Rollouts of any age are clipped as rarely as it allows.
    Zheng et al., https://arxiv.org/abs/2510.01161, as their own program has it.
    """
    if m2_threshold <= 0:
        raise UserError(
            f"`m2_threshold` of the policy loss m2po is {m2_threshold}: it bounds a mean of "
            "squares, give more than 0"
        )
    assert inputs.chosen_BT is not None, "m2po's range is chosen beforehand"
    log_ratio_BT = log_ratio(inputs)
    ratio_BT = log_ratio_BT.exp()
    largest_BT = inputs.chosen_BT.to(ratio_BT.dtype)
    low_BT = (1 - (-largest_BT).exp()).clamp(min=least_range_low)
    high_BT = (largest_BT.exp() - 1).clamp(min=least_range_high)
    plain_BT = -inputs.advantages_BT * ratio_BT
    clipped_BT = -inputs.advantages_BT * ratio_BT.clamp(1 - low_BT, 1 + high_BT)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.maximum(plain_BT, clipped_BT),
        metrics={
            "pg_clipfrac": clipped_BT > plain_BT,
            "ppo_kl": -log_ratio_BT,
            "m2": log_ratio_BT.square(),
            "clip_range_high": high_BT,
        },
    )
