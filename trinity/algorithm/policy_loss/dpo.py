"""DPO: makes the chosen answer of a pair more probable than the rejected one."""

from torch.nn.functional import logsigmoid

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.pairs import for_both_rows, pair_metrics, sums_over_reference
from trinity.errors import UserError


def dpo(inputs: PolicyInputs, *, beta: float = 0.1, label_smoothing: float = 0.0) -> PolicyLoss:
    """-(1 - e) log sigmoid(beta D) - e log sigmoid(-beta D) of each pair; e is the smoothing.

    D is the sum of log p - log p_reference over the chosen row's tokens minus that over the
    rejected row's. Rows [B] alternate, chosen first; both carry the loss of their pair.
    Rafailov et al., https://arxiv.org/abs/2305.18290; smoothing: https://ericmitchell.ai/cdpo.pdf.
    """
    if not 0 <= label_smoothing < 0.5:
        raise UserError(
            f"`label_smoothing` of the policy loss dpo is {label_smoothing}: it is the probability "
            "that a pair is the wrong way round, give 0 or more and less than 0.5"
        )
    rewards_P2 = beta * sums_over_reference(inputs)
    margin_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    loss_P = -(1 - label_smoothing) * logsigmoid(margin_P) - label_smoothing * logsigmoid(-margin_P)
    return PolicyLoss(
        name="dpo_loss", loss_B=for_both_rows(loss_P), metrics=pair_metrics(rewards_P2)
    )
