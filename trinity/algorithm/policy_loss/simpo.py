"""SimPO: prefers the chosen answer by its mean log-probability, without a reference model."""

from torch.nn.functional import logsigmoid

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.pairs import for_both_rows, mean_logprobs, pair_metrics
from trinity.errors import UserError


def simpo(inputs: PolicyInputs, *, beta: float = 2.0, gamma: float = 1.0) -> PolicyLoss:
    """-log sigmoid(beta (mean log p_chosen - mean log p_rejected) - gamma) of each pair.

    The means are over a row's tokens; gamma is the margin by which the chosen answer must lead.
    Rows [B] alternate, chosen first; both carry the loss of their pair.
    Meng et al., https://arxiv.org/abs/2405.14734.
    """
    if beta <= 0 or gamma < 0:
        raise UserError(
            f"`beta` {beta} and `gamma` {gamma} of the policy loss simpo: give a `beta` above 0 "
            "and a `gamma` of 0 or more"
        )
    rewards_P2 = beta * mean_logprobs(inputs)
    loss_P = -logsigmoid(rewards_P2[:, 0] - rewards_P2[:, 1] - gamma)
    return PolicyLoss(
        name="simpo_loss", loss_B=for_both_rows(loss_P), metrics=pair_metrics(rewards_P2)
    )
