"""A custom advantage and policy loss in one file: hard tasks first, held close by."""

from typing import TYPE_CHECKING

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.policy_loss import POLICY_LOSSES

if TYPE_CHECKING:
    from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


@ADVANTAGES.register_module("hard_tasks")
def hard_tasks(samples: Samples, *, focus: float = 1.0) -> Advantages:
    """(r - mean) (1 - mean)^focus, [N], with the mean of the task's rollouts, from 0 to 1."""
    means_G = samples.group_means(samples.rewards)
    weights_G = (1.0 - means_G.clip(0.0, 1.0)) ** focus
    return Advantages(weights_G[samples.groups] * (samples.rewards - means_G[samples.groups]))


@POLICY_LOSSES.register_module("held_close")
def held_close(inputs: "PolicyInputs", *, pull: float = 1.0) -> "PolicyLoss":
    """-A p / p_old + pull (log p - log p_old)^2 / 2 of each token, [B, T]."""
    from trinity.algorithm.policy_loss.inputs import PolicyLoss  # brings torch, for trainers only

    log_ratio_BT = (inputs.logprobs_BT - inputs.old_logprobs_BT).clamp(-20.0, 20.0)
    away_BT = 0.5 * log_ratio_BT**2
    return PolicyLoss(
        name="pg_loss",
        loss_BT=-inputs.advantages_BT * log_ratio_BT.exp() + pull * away_BT,
        metrics={"away": away_BT.detach()},
    )
