"""DPPO by total variation: leaves out tokens whose probability moved too far."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import clip_bounds, inside_trust_region


def dppo_tv(
    inputs: PolicyInputs,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_ratio_c: float = 20.0,
) -> PolicyLoss:
    """-A sg(min(r, c)) log p where p - p_old <= high if A > 0, else >= -low; all [B, T].

    https://arxiv.org/abs/2602.04879; the ranges are differences of probabilities, not ratios.
    """
    low, high = clip_bounds(clip_range, clip_range_low, clip_range_high)
    moved_BT = inputs.logprobs_BT.detach().exp() - inputs.old_logprobs_BT.exp()
    inside_BT = torch.where(inputs.advantages_BT > 0, moved_BT <= high, moved_BT >= -low)
    return inside_trust_region(inputs, inside_BT, clip_ratio_c)
