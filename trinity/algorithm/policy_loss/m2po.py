"""M2PO: a policy gradient without clipping that leaves out a few tokens of outlying ratios."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio
from trinity.errors import UserError


def m2po(inputs: PolicyInputs, *, m2_threshold: float = 0.04) -> PolicyLoss:
    """-A r, 0 for the selected tokens; r = p / p_old, all [B, T].

    Selected are the fewest tokens of the batch, those of the largest (log r)^2, without which the
    mean of (log r)^2 is below the threshold: trinity.algorithm.token_selection. On policy none is.
    Zheng et al., https://arxiv.org/abs/2510.01161.
    """
    if m2_threshold <= 0:
        raise UserError(
            f"`m2_threshold` of the policy loss m2po is {m2_threshold}: it bounds a mean of "
            "squares, give more than 0"
        )
    assert inputs.chosen_BT is not None, "m2po's tokens are chosen beforehand"
    log_ratio_BT = log_ratio(inputs)
    loss_BT = -inputs.advantages_BT * log_ratio_BT.exp()
    return PolicyLoss(
        name="pg_loss",
        loss_BT=torch.where(inputs.chosen_BT, 0.0, loss_BT),
        metrics={
            "pg_clipfrac": inputs.chosen_BT,
            "ppo_kl": -log_ratio_BT,
            "m2": log_ratio_BT.square(),
        },
    )
