"""Clip-Cov: PPO without a few of the tokens whose update would reduce entropy strongly."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clip_bounds, log_ratio
from trinity.errors import UserError


def clip_cov(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> PolicyLoss:
    """max(-A r, -A clip(r, 1 - low, 1 + high)), 0 for the selected tokens; [B, T].

    Selected are clip_cov_ratio of the update's tokens, at random among those whose covariance (A -
    mean A) (log p - mean log p) is between lb and ub: trinity.algorithm.token_selection.
    Cui et al., https://arxiv.org/abs/2505.22617.
    """
    if not 0 < clip_cov_ratio <= 1:
        raise UserError(
            f"`clip_cov_ratio` of the policy loss clip_cov is {clip_cov_ratio}: it is a share of "
            "the tokens, give more than 0 and at most 1"
        )
    if clip_cov_lb >= clip_cov_ub:
        raise UserError(
            f"`clip_cov_lb` of the policy loss clip_cov is {clip_cov_lb}: give less than "
            f"`clip_cov_ub`, {clip_cov_ub}"
        )
    assert inputs.chosen_BT is not None, "clip_cov's tokens are chosen beforehand"
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    log_ratio_BT = log_ratio(inputs)
    ratio_BT = log_ratio_BT.exp()
    plain_BT = -inputs.advantages_BT * ratio_BT
    clipped_BT = -inputs.advantages_BT * ratio_BT.clamp(1 - low, 1 + high)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(inputs.chosen_BT, 0.0, torch.maximum(plain_BT, clipped_BT)),
        metrics={"pg_clipfrac": inputs.chosen_BT, "ppo_kl": -log_ratio_BT},
    )
