"""DRO: the policy gradient with a quadratic penalty on the distance from the old policy."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.errors import UserError


def dro(inputs: PolicyInputs, *, dro_beta: float = 1.0) -> PolicyLoss:
    """-(A log p - beta (log p - log p_old)^2 / 2) of each token, [B, T].

    Richemond et al., https://arxiv.org/abs/2405.19107.
    """
    if dro_beta <= 0:
        raise UserError(f"`dro_beta` of the policy loss dro is {dro_beta}: give more than 0")
    log_ratio_BT = inputs.logprobs_BT - inputs.old_logprobs_BT
    pull_BT = 0.5 * dro_beta * log_ratio_BT.square()
    return PolicyLoss(
        name="pg_loss",
        loss_BT=pull_BT - inputs.advantages_BT * inputs.logprobs_BT,
        metrics={"ppo_kl": -log_ratio_BT},
    )
