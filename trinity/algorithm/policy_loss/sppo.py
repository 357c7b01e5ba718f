"""sPPO: the advantage times the log-ratio, while the ratio stays near 1."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio


def sppo(inputs: PolicyInputs, *, epsilon: float = 0.3) -> PolicyLoss:
    """-A (log p - log p_old) where 1 / (1 + epsilon) <= p / p_old <= 1 + epsilon, else 0; [B, T].

    Vaswani et al., https://arxiv.org/abs/2108.05828.
    """
    log_ratio_BT = log_ratio(inputs)
    ratio_BT = log_ratio_BT.detach().exp()
    kept_BT = (ratio_BT >= 1 / (1 + epsilon)) & (ratio_BT <= 1 + epsilon)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(kept_BT, -inputs.advantages_BT * log_ratio_BT, 0.0),
        metrics={"pg_clipfrac": ~kept_BT},
    )
