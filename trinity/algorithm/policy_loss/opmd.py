"""OPMD: a policy gradient scaled by the temperature tau, which limits the change of the policy."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


def opmd(inputs: PolicyInputs, *, tau: float = 1.0) -> PolicyLoss:
    """-A log p / (1 + tau), [B, T].

    The simple variant of online policy mirror descent: Trinity-RFT,
    https://arxiv.org/abs/2505.17826; from Kimi k1.5's, https://arxiv.org/abs/2501.12599.
    """
    loss_BT = -inputs.advantages_BT * inputs.logprobs_BT / (1 + tau)
    return PolicyLoss(name="opmd_loss", loss_BT=loss_BT)
