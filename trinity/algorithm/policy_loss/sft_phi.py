"""SFT with smaller weights where the policy is certain, for or against the token."""

import math

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.errors import UserError


def sft_phi(inputs: PolicyInputs, *, cutoff_prob: float = 1.0) -> PolicyLoss:
    """-min(log p, log cutoff) sg(p (1 - p)) of each token, [B, T]; no gradient past the cutoff.

    CHORD, https://arxiv.org/abs/2508.11408.
    """
    if not 0 < cutoff_prob <= 1:
        raise UserError(
            f"`cutoff_prob` of the policy loss sft_phi is {cutoff_prob}: give a probability above 0"
        )
    probs_BT = inputs.logprobs_BT.detach().exp()
    held_BT = inputs.logprobs_BT.clamp(max=math.log(cutoff_prob))
    return PolicyLoss(name="sft_phi_loss", loss_BT=-held_BT * probs_BT * (1 - probs_BT))
