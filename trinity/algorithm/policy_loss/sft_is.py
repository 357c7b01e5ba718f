"""SFT with each token weighted by its probability."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


def sft_is(inputs: PolicyInputs) -> PolicyLoss:
    """-sg(p) log p of each token, [B, T].

    Dynamic fine-tuning, https://arxiv.org/abs/2508.05629; the part of CHORD without phi.
    """
    probs_BT = inputs.logprobs_BT.detach().exp()
    return PolicyLoss(name="sft_is_loss", loss_BT=-probs_BT * inputs.logprobs_BT)
