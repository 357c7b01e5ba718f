"""The entropy of all rows."""

from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.inputs import PolicyLoss


def default(inputs: EntropyInputs, *, entropy_coef: float = 0.0) -> PolicyLoss:
    """entropy_coef * H of each token, [B, T], aggregated by the user's mode."""
    return PolicyLoss(name="entropy_loss", loss_BT=entropy_coef * inputs.entropy_BT)
