"""DCPO: PPO whose clip range widens as the old policy's probability of the token falls."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio
from trinity.errors import UserError

LARGEST_LOG_INVERSE = 20.0
"""Bound of -log p_old; both bounds of the ratio have long been reached there."""


def dcpo(
    inputs: PolicyInputs,
    *,
    clip_range_low: float = 0.16,
    clip_range_high: float = 0.2,
    clip_ratio_c: float = 10.0,
) -> PolicyLoss:
    """max(-A r, -A clip(r, l, h)), for A < 0 at most -A c; r = p / p_old, all [B, T].

    l = 1/2 + sqrt(max(1 - 4 low / p_old, 0)) / 2 and h = 1/2 + sqrt(1 + 4 high / p_old) / 2, at
    most c: the ratios at which |r - 1| p reaches low and high. A certain token has about PPO's
    range; a rare one may fall to half and rise to c times its probability. It is averaged row by
    row: `seq-mean-token-mean`. Yang et al., https://arxiv.org/abs/2509.02333; their smoothing of
    advantages over the steps is not part of it.
    """
    if clip_ratio_c <= 1:
        raise UserError(
            f"`clip_ratio_c` of the policy loss dcpo is {clip_ratio_c}: give more than 1"
        )
    log_ratio_BT = log_ratio(inputs)
    ratio_BT, advantages_BT = log_ratio_BT.exp(), inputs.advantages_BT
    low_BT, high_BT = _bounds(inputs.old_logprobs_BT, clip_range_low, clip_range_high, clip_ratio_c)
    plain_BT = -advantages_BT * ratio_BT
    clipped_BT = -advantages_BT * torch.clamp(ratio_BT, low_BT, high_BT)
    upper_BT = torch.maximum(plain_BT, clipped_BT)
    bound_BT, negative_BT = -advantages_BT * clip_ratio_c, advantages_BT < 0
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(negative_BT, torch.minimum(upper_BT, bound_BT), upper_BT),
        metrics={
            "pg_clipfrac": clipped_BT > plain_BT,
            "pg_clipfrac_lower": (upper_BT > bound_BT) & negative_BT,
            "ppo_kl": -log_ratio_BT,
        },
    )


def _bounds(
    old_logprobs_BT: torch.Tensor, low: float, high: float, largest: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the smallest and the largest ratio that is not clipped."""
    inverse_BT = (-old_logprobs_BT).clamp(max=LARGEST_LOG_INVERSE).exp()
    low_BT = 0.5 + 0.5 * (1 - 4 * low * inverse_BT).clamp(min=0).sqrt()
    high_BT = 0.5 + 0.5 * (1 + 4 * high * inverse_BT).sqrt()
    return low_BT, high_BT.clamp(max=largest)
