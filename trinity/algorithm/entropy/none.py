"""No entropy loss; with this name callers can skip the entropy computation."""

import torch

from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.inputs import PolicyLoss


def none(inputs: EntropyInputs) -> PolicyLoss:
    """0 of each token, [B, T]."""
    return PolicyLoss(name="entropy_loss", loss_BT=torch.zeros_like(inputs.entropy_BT))
