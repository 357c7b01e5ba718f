"""Shared by GSPO and its token variant: the ratio of a sequence, and clipping by it."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import row_means

LARGEST_LOG_RATIO = 10.0


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
    ratio_BT = log_ratio_BT.clamp(max=LARGEST_LOG_RATIO).exp()
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
