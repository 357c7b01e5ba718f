"""DPO: makes the chosen answer of a pair more probable than the rejected one."""

import torch
from torch.nn.functional import logsigmoid

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
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
    rewards_P2 = beta * _log_ratios(inputs).view(-1, 2)
    margin_P = rewards_P2[:, 0] - rewards_P2[:, 1]
    loss_P = -(1 - label_smoothing) * logsigmoid(margin_P) - label_smoothing * logsigmoid(-margin_P)
    return PolicyLoss(
        name="dpo_loss",
        loss_B=_of_both_rows(loss_P),
        metrics={
            "chosen_reward": _of_both_rows(rewards_P2[:, 0]),
            "rejected_reward": _of_both_rows(rewards_P2[:, 1]),
            "accuracy_mean": _of_both_rows(margin_P > 0),
        },
    )


def _log_ratios(inputs: PolicyInputs) -> torch.Tensor:
    """log p - log p_reference of each row, [B]."""
    assert inputs.reference_logprobs_BT is not None, "dpo compares with a reference"
    assert len(inputs.mask_BT) % 2 == 0, "the rows of a pair travel together"
    difference_BT = inputs.logprobs_BT - inputs.reference_logprobs_BT
    return torch.where(inputs.mask_BT, difference_BT, 0.0).sum(-1)


def _of_both_rows(values_P: torch.Tensor) -> torch.Tensor:
    return values_P.repeat_interleave(2)
