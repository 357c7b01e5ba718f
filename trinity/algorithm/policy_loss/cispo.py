"""CISPO: a policy gradient whose importance weights are clipped; no token loses its gradient."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio


def cispo(
    inputs: PolicyInputs,
    *,
    clip_range_low: float = 1.0,
    clip_range_high: float = 0.28,
    enable_mask_clip: bool = False,
    mask_clip_range_low: float = 1.0,
    mask_clip_range_high: float = 0.28,
) -> PolicyLoss:
    """-A sg(clip(r, 1 - low, 1 + high)) log p with r = p / p_old, all [B, T].

    `enable_mask_clip` leaves out the tokens that PPO would clip at the two mask ranges.
    MiniMax-M1, https://arxiv.org/abs/2506.13585.
    """
    advantages_BT = inputs.advantages_BT
    log_ratio_BT = log_ratio(inputs).detach()
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(1 - clip_range_low, 1 + clip_range_high)
    kept_BT = torch.ones_like(inputs.mask_BT)
    if enable_mask_clip:
        risen_BT = (ratio_BT > 1 + mask_clip_range_high) & (advantages_BT > 0)
        fallen_BT = (ratio_BT < 1 - mask_clip_range_low) & (advantages_BT < 0)
        kept_BT = ~(risen_BT | fallen_BT)
    return PolicyLoss(
        name="cispo_loss",
        loss_BT=torch.where(kept_BT, -advantages_BT * clipped_BT * inputs.logprobs_BT, 0.0),
        metrics={
            "pg_clipfrac": ratio_BT != clipped_BT,
            "ppo_kl": -log_ratio_BT,
            "unmasked_frac": kept_BT,
        },
    )
