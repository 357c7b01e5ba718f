"""TOPR: tapered importance weights, on bad samples only."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio


def topr(inputs: PolicyInputs, *, advantage_threshold: float = 0.0) -> PolicyLoss:
    """-sg(a) A log p; a = clip(p / p_old, 0, 1) where A <= threshold, else 1; all [B, T].

    Le Roux et al., https://arxiv.org/abs/2503.14286, token by token.
    """
    advantages_BT = inputs.advantages_BT
    ratio_BT = log_ratio(inputs).detach().exp()
    alpha_BT = torch.where(advantages_BT <= advantage_threshold, ratio_BT.clamp(max=1.0), 1.0)
    return PolicyLoss(
        name="topr_loss",
        loss_BT=-alpha_BT * advantages_BT * inputs.logprobs_BT,
        metrics={"avg_alpha": alpha_BT, "avg_ratio": ratio_BT},
    )
