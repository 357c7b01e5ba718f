"""ORPO: fine-tuning on the chosen answer with a penalty on the odds of the rejected one."""

import torch
from torch.nn.functional import logsigmoid

from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.pairs import for_both_rows, mean_logprobs, pair_metrics
from trinity.errors import UserError

LARGEST_LOGPROB = -1e-6
"""Bound of a mean log-probability, so that the odds of a certain answer stay finite."""


def orpo(inputs: PolicyInputs, *, beta: float = 0.1) -> PolicyLoss:
    """-m_chosen - beta log sigmoid(o_chosen - o_rejected) of each pair; o = m - log(1 - e^m).

    m is the mean of log p over a row's tokens and o its log-odds. Rows [B] alternate, chosen first;
    both carry the loss of their pair. There is no reference model.
    Hong et al., https://arxiv.org/abs/2403.07691, whose lambda is beta.
    """
    if beta < 0:
        raise UserError(f"`beta` of the policy loss orpo is {beta}: give 0 or more")
    means_P2 = mean_logprobs(inputs)
    odds_P2 = _log_odds(means_P2)
    preference_P = -logsigmoid(odds_P2[:, 0] - odds_P2[:, 1])
    return PolicyLoss(
        name="orpo_loss",
        loss_B=for_both_rows(-means_P2[:, 0] + beta * preference_P),
        metrics={
            **pair_metrics(beta * means_P2),
            "sft_loss": for_both_rows(-means_P2[:, 0]),
            "odds_ratio_loss": for_both_rows(preference_P),
        },
    )


def _log_odds(means_P2: torch.Tensor) -> torch.Tensor:
    bounded_P2 = means_P2.clamp(max=LARGEST_LOGPROB)
    return bounded_P2 - (-torch.expm1(bounded_P2)).log()
