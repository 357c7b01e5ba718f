"""IPO: DPO that stops at a margin instead of pushing a pair apart without end."""

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.pairs import (
    for_both_rows,
    means_over_reference,
    pair_metrics,
    sums_over_reference,
)
from trinity.errors import UserError


def ipo(inputs: PolicyInputs, *, beta: float = 0.1, length_normalized: bool = True) -> PolicyLoss:
    """(D - 1 / (2 beta))^2 of each pair.

    D is the mean of log p - log p_reference over the chosen row's tokens minus that over the
    rejected row's, or the difference of their sums without `length_normalized`. Rows [B] alternate,
    chosen first; both carry the loss of their pair. Azar et al., https://arxiv.org/abs/2310.12036,
    equation 17; means as its authors advise and TRL computes.
    """
    if beta <= 0:
        raise UserError(f"`beta` of the policy loss ipo is {beta}: give more than 0")
    gaps_P2 = means_over_reference(inputs) if length_normalized else sums_over_reference(inputs)
    difference_P = gaps_P2[:, 0] - gaps_P2[:, 1]
    loss_P = (difference_P - 1 / (2 * beta)).square()
    return PolicyLoss(
        name="ipo_loss", loss_B=for_both_rows(loss_P), metrics=pair_metrics(beta * gaps_P2)
    )
