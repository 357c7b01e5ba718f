"""The entropy of rollouts, without training data among them."""

import torch

from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.inputs import PolicyLoss


def mix(inputs: EntropyInputs, *, entropy_coef: float = 0.0) -> PolicyLoss:
    """entropy_coef * H of each token, [B, T], averaged over the rows that are not expert rows."""
    entropy_BT = entropy_coef * inputs.entropy_BT
    if inputs.is_expert_B is not None:
        entropy_BT = torch.where(inputs.is_expert_B[:, None], 0.0, entropy_BT)
    return PolicyLoss(name="entropy_loss", loss_BT=entropy_BT, expert_agg_mode="token-mean")
