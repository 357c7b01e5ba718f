"""Online DPO: the best and the worst rollout of each task are a pair."""

import numpy as np

from trinity.algorithm.token_advantage.masked import broadcast_rows, masked
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatVector,
    IntVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def online_dpo(
    batch: TokenBatch, *, beta: float = 0.1, label_smoothing: float = 0.0, unit: Unit = "run"
) -> TokenAdvantages:
    """A = 2 beta ((1 - e) sigmoid(-m) - e sigmoid(m)) for the chosen rollout, -A for the rejected.

    Of each group the unit of the largest s is chosen and that of the smallest rejected, ties by
    order; all others, and groups whose s are equal, are left out. s [B] is the sum of a row's
    rewards; m is beta times the sum of log p - log p_reference over the chosen one's trained tokens
    minus that over the rejected one's, p the policy before each update; e is the smoothing. With
    `gpg` and `seq-mean-token-sum` it is the gradient of `dpo` on these pairs.

    unit "run": a run is one answer, with the mean of its rows' s and all of their tokens; "sample":
        every row is.

    https://arxiv.org/abs/2305.18290, with pairs of rollouts: https://arxiv.org/abs/2402.04792
    """
    if beta <= 0:
        raise UserError(f"algorithm.advantage_fn_args.beta is {beta}; give more than 0")
    if not 0 <= label_smoothing < 0.5:
        raise UserError(
            f"algorithm.advantage_fn_args.label_smoothing is {label_smoothing}; give 0 or more and "
            "less than 0.5"
        )
    units = Units.of_batch(batch, unit)
    gaps_BT = masked(batch.logprobs_BT - batch.needed("reference"), batch.mask_BT)
    changes_U = units.sums_U(gaps_BT.sum(-1))
    has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0
    scores_U = units.means_U(batch.scores_B)
    chosen_P, rejected_P = _extremes(scores_U, units.groups.index_B, has_tokens_U)
    margins_P = np.clip(beta * (changes_U[chosen_P] - changes_U[rejected_P]), -500, 500)
    right_P = 1 / (1 + np.exp(-margins_P))
    pull_P = 2 * beta * ((1 - label_smoothing) * (1 - right_P) - label_smoothing * right_P)
    advantages_U, is_used_U = np.zeros(len(scores_U)), np.zeros(len(scores_U), np.bool_)
    advantages_U[chosen_P], advantages_U[rejected_P] = pull_P, -pull_P
    is_used_U[chosen_P] = is_used_U[rejected_P] = True
    mask_BT = batch.mask_BT & is_used_U[units.number_B][:, None]
    return TokenAdvantages(
        advantages_BT=broadcast_rows(units.spread_B(advantages_U), mask_BT),
        mask_BT=mask_BT,
        metrics={
            "online_dpo/num_pairs": float(len(chosen_P)),
            "online_dpo/margin": float(margins_P.mean()) if len(margins_P) else 0.0,
            "online_dpo/accuracy": float((margins_P > 0).mean()) if len(margins_P) else 0.0,
        },
    )


def _extremes(
    scores_U: FloatVector, groups_U: IntVector, is_possible_U: BoolMatrix
) -> tuple[IntVector, IntVector]:
    """Returns the best and the worst unit of each group in which they differ, [P] each."""
    possible = np.flatnonzero(is_possible_U)
    order = possible[np.lexsort((possible, scores_U[possible], groups_U[possible]))]
    downwards = possible[np.lexsort((possible, -scores_U[possible], groups_U[possible]))]
    _, first_G = np.unique(groups_U[order], return_index=True)
    worst_G, best_G = order[first_G], downwards[first_G]
    differ_G = scores_U[best_G] > scores_U[worst_G]
    return best_G[differ_G], worst_G[differ_G]
