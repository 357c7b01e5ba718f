"""Supervised fine-tuning: the negative log-likelihood."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


def sft(inputs: PolicyInputs) -> PolicyLoss:
    """-log p of each token, [B, T]."""
    return PolicyLoss(name="sft_loss", loss_BT=-inputs.logprobs_BT)
