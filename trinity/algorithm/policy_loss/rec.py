"""REC: REINFORCE on rollouts of any age, composed of a range, a weight and a regularizer."""

from typing import Literal

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import LARGEST_LOG_RATIO, log_ratio, row_means
from trinity.errors import UserError

ClipMode = Literal["none", "one-side", "two-side", "ring", "gspo-one-side"]
Weight = Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"]
Regularizer = Literal["none", "k2", "forward-kl"]


def rec(
    inputs: PolicyInputs,
    *,
    epsilon_low: float = 0.2,
    epsilon_high: float = 0.2,
    epsilon_low_prime: float = 0.6,
    epsilon_high_prime: float = 2.0,
    clip_mode: ClipMode = "none",
    weight: Weight = "none",
    regularizer: Regularizer = "none",
    regularizer_coef: float = 0.0,
    temp: float = 1.0,
) -> PolicyLoss:
    """-A w log p in the range, else 0, plus the regularizer; all [B, T], r = p / p_old detached.

    Range: two-side 1 - low <= r <= 1 + high; one-side only the bound that A pushes towards;
    gspo-one-side the same of the row's r; ring two-side, or r <= 1 - low' where A >= 0, or
    r >= 1 + high' where A <= 0. Weight w: 1, r, the row's r, or exp(A / temp). Regularizer, times
    its coefficient: k2 (log p - log p_old)^2, forward-kl -log p.
    Yao et al., https://arxiv.org/abs/2509.24203.
    """
    ratio_BT = log_ratio(inputs).detach().exp()
    row_ratio_B1 = _ratio_of_rows(inputs)
    bounds = (1 - epsilon_low, 1 + epsilon_high, 1 - epsilon_low_prime, 1 + epsilon_high_prime)
    kept_BT = _in_range(clip_mode, ratio_BT, row_ratio_B1, inputs.advantages_BT, bounds)
    weights_BT = _weights(weight, ratio_BT, row_ratio_B1, inputs.advantages_BT, temp)
    reinforce_BT = -inputs.advantages_BT * weights_BT * inputs.logprobs_BT
    regularizer_BT = regularizer_coef * _regularizer(regularizer, inputs)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(kept_BT, reinforce_BT, 0.0) + regularizer_BT,
        agg_mode="seq-mean-token-mean" if clip_mode == "gspo-one-side" else None,
        metrics={"pg_clipfrac": ~kept_BT},
    )


def _ratio_of_rows(inputs: PolicyInputs) -> torch.Tensor:
    """Returns exp of the mean log-ratio of each row's tokens, [B, 1]."""
    difference_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).detach()
    mean_B1 = row_means(difference_BT, inputs.mask_BT)
    return mean_B1.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def _in_range(
    clip_mode: str,
    ratio_BT: torch.Tensor,
    row_ratio_B1: torch.Tensor,
    advantages_BT: torch.Tensor,
    bounds: tuple[float, float, float, float],
) -> torch.Tensor:
    """Returns the tokens that count, bool [B, T]."""
    low, high, far_low, far_high = bounds
    up_BT, down_BT = advantages_BT >= 0, advantages_BT <= 0
    if clip_mode == "none":
        return torch.ones_like(up_BT)
    if clip_mode == "one-side":
        return (up_BT & (ratio_BT <= high)) | (down_BT & (ratio_BT >= low))
    if clip_mode == "gspo-one-side":
        return (up_BT & (row_ratio_B1 <= high)) | (down_BT & (row_ratio_B1 >= low))
    near_BT = (ratio_BT >= low) & (ratio_BT <= high)
    if clip_mode == "two-side":
        return near_BT
    if clip_mode == "ring":
        return near_BT | (up_BT & (ratio_BT <= far_low)) | (down_BT & (ratio_BT >= far_high))
    raise UserError(f"`clip_mode` of the policy loss rec is {clip_mode!r}: unknown value")


def _weights(
    weight: str,
    ratio_BT: torch.Tensor,
    row_ratio_B1: torch.Tensor,
    advantages_BT: torch.Tensor,
    temp: float,
) -> torch.Tensor:
    if weight == "none":
        return torch.ones_like(ratio_BT)
    if weight == "importance_sampling":
        return ratio_BT
    if weight == "gspo_importance_sampling":
        return row_ratio_B1
    if weight == "advantage":
        return (advantages_BT / temp).clamp(max=LARGEST_LOG_RATIO).exp()
    raise UserError(f"`weight` of the policy loss rec is {weight!r}: unknown value")


def _regularizer(regularizer: str, inputs: PolicyInputs) -> torch.Tensor:
    if regularizer == "none":
        return torch.zeros_like(inputs.logprobs_BT)
    if regularizer == "k2":
        return (inputs.logprobs_BT - inputs.old_logprobs_BT).square()
    if regularizer == "forward-kl":
        return -inputs.logprobs_BT
    raise UserError(f"`regularizer` of the policy loss rec is {regularizer!r}: unknown value")
