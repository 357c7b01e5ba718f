"""GPG: the plain policy gradient."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


def gpg(inputs: PolicyInputs) -> PolicyLoss:
    """-A log p of each token, [B, T].

    Chu et al., https://arxiv.org/abs/2504.02546.
    """
    return PolicyLoss(name="pg_loss", loss_BT=-inputs.advantages_BT * inputs.logprobs_BT)
