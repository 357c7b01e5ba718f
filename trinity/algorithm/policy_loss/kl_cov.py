"""KL-Cov: a KL penalty on the tokens whose update would reduce entropy the most."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ratio import log_ratio
from trinity.errors import UserError


def kl_cov(
    inputs: PolicyInputs, *, kl_cov_ratio: float = 0.0002, ppo_kl_coef: float = 1.0
) -> PolicyLoss:
    """-A r, plus coef |log p - log p_old| for the selected tokens; [B, T].

    Selected are kl_cov_ratio of the update's tokens, those with the largest covariance (A - mean A)
    (log p - mean log p): trinity.algorithm.token_selection. The penalty is 0 where p is p_old, as
    on policy. Cui et al., https://arxiv.org/abs/2505.22617.
    """
    if not 0 < kl_cov_ratio <= 1:
        raise UserError(
            f"`kl_cov_ratio` of the policy loss kl_cov is {kl_cov_ratio}: it is a share of the "
            "tokens, give more than 0 and at most 1"
        )
    assert inputs.chosen_BT is not None, "kl_cov's tokens are chosen beforehand"
    log_ratio_BT = log_ratio(inputs)
    distance_BT = log_ratio_BT.abs()
    pull_BT = torch.where(inputs.chosen_BT, ppo_kl_coef * distance_BT, 0.0)
    return PolicyLoss(
        name="pg_loss",
        loss_BT=pull_BT - inputs.advantages_BT * log_ratio_BT.exp(),
        metrics={"ppo_kl": distance_BT, "kl_cov_frac": inputs.chosen_BT},
    )
