"""KTO on rows of data: each answer is labelled good or bad by itself."""

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.pairs import for_both_rows, sums_over_reference
from trinity.errors import UserError


def kto(
    inputs: PolicyInputs,
    *,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> PolicyLoss:
    """w (1 - sigmoid(beta (D - z))) of a good answer, w (1 - sigmoid(beta (z - D))) of a bad one.

    D is the sum of log p - log p_reference over its tokens, and z, without a gradient, the mean of
    the same over the update's prompts with answers of other rows, at least 0:
    trinity.algorithm.token_selection.kto. w is `desirable_weight` or `undesirable_weight`. Rows [B]
    alternate, an answer first, then its prompt with another one; both carry the answer's loss, and
    the sign of the advantage is the label.
    Ethayarajh et al., https://arxiv.org/abs/2402.01306, equations 7 and 8.
    """
    weights = {"desirable_weight": desirable_weight, "undesirable_weight": undesirable_weight}
    for name, value in {"beta": beta, **weights}.items():
        if value <= 0:
            raise UserError(f"`{name}` of the policy loss kto is {value}: give more than 0")
    assert inputs.chosen_BT is not None, "its token selection is there"
    gaps_P = sums_over_reference(inputs)[:, 0]
    shifts_BT = torch.where(inputs.mask_BT, inputs.chosen_BT.to(gaps_P.dtype), 0.0)
    shift_P = shifts_BT.amax(-1).view(-1, 2).amax(-1)
    labels_BT = torch.where(inputs.mask_BT, inputs.advantages_BT, 0.0)
    signs_P = labels_BT.sum(-1).view(-1, 2)[:, 0].sign()
    weights_P = desirable_weight * (signs_P > 0) + undesirable_weight * (signs_P < 0)
    margins_P = signs_P * (gaps_P - shift_P)
    loss_P = weights_P * (1 - torch.sigmoid(beta * margins_P))
    return PolicyLoss(
        name="kto_loss",
        loss_B=for_both_rows(loss_P),
        metrics={
            "kto_divergence": for_both_rows(shift_P),
            "reward_margin": for_both_rows(beta * margins_P.detach()),
            "accuracy_mean": for_both_rows(margins_P > 0),
        },
    )
