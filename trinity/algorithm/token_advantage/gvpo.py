"""GVPO: fits the policy's change of log-probability to the reward, both within a group."""

import numpy as np

from trinity.algorithm.token_advantage.masked import broadcast_rows, masked
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def gvpo(batch: TokenBatch, *, beta: float = 0.1, unit: Unit = "run") -> TokenAdvantages:
    """A = beta n / (n - 1) ((s - mean s) - beta (D - mean D)), at every token; a single unit: 0.

    s [B] is the sum of a row's rewards, D [B] that of log p - log p_rollout over its trained
    tokens, p the policy before each update; means are over the n units of the group. With `gpg` and
    `seq-mean-token-sum` it is the gradient of (beta (D - mean D) - (s - mean s))^2 / 2 (n - 1),
    which is least where the policy is the best one that a KL term of beta allows, for answers of
    any policy. On policy D is 0.

    unit "run": a run counts once, with the mean of its rows' s and the sum of their D, and all its
        rows get its A; "sample": every row counts.

    https://arxiv.org/abs/2504.19599
    """
    if beta <= 0:
        raise UserError(f"algorithm.advantage_fn_args.beta is {beta}; give more than 0")
    units = Units.of_batch(batch, unit)
    groups, scores_U = units.groups, units.means_U(batch.scores_B)
    changes_U = units.sums_U(
        masked(batch.logprobs_BT - batch.rollout_logprobs_BT, batch.mask_BT).sum(-1)
    )
    target_U = scores_U - groups.means_B(scores_U)
    reached_U = beta * (changes_U - groups.means_B(changes_U))
    sizes_U = groups.sizes_B
    scale_U = np.where(sizes_U > 1, beta * sizes_U / np.maximum(sizes_U - 1, 1), 0.0)
    error_U = target_U - reached_U
    advantages_B = units.spread_B(scale_U * error_U)
    return TokenAdvantages(
        advantages_BT=broadcast_rows(advantages_B, batch.mask_BT),
        metrics={
            "gvpo/error": float(np.square(error_U).mean()) if len(error_U) else 0.0,
            "gvpo/reached": float(np.square(reached_U).mean()) if len(error_U) else 0.0,
        },
    )
