"""GVPO: fits the policy's change of log-probability to the reward, both within a group."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows, masked
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.errors import UserError


def gvpo(batch: TokenBatch, *, beta: float = 0.1) -> TokenAdvantages:
    """A = beta n / (n - 1) ((s - mean s) - beta (D - mean D)), at every token; a single row: 0.

    s [B] is the sum of a row's rewards, D [B] that of log p - log p_rollout over its trained
    tokens, p the policy before this step; means are over the n rows of the group. With `gpg` and
    `seq-mean-token-sum` it is the gradient of (beta (D - mean D) - (s - mean s))^2 / 2 (n - 1),
    which is least where the policy is the best one that a KL term of beta allows, for answers of
    any policy. On policy D is 0. https://arxiv.org/abs/2504.19599
    """
    if beta <= 0:
        raise UserError(f"algorithm.advantage_fn_args.beta is {beta}; give more than 0")
    groups = Groups.from_ids(batch.groups_B)
    changes_B = masked(batch.logprobs_BT - batch.rollout_logprobs_BT, batch.mask_BT).sum(-1)
    target_B = batch.scores_B - groups.means_B(batch.scores_B)
    reached_B = beta * (changes_B - groups.means_B(changes_B))
    sizes_B = groups.sizes_B
    scale_B = np.where(sizes_B > 1, beta * sizes_B / np.maximum(sizes_B - 1, 1), 0.0)
    error_B = target_B - reached_B
    return TokenAdvantages(
        advantages_BT=broadcast_rows(scale_B * error_B, batch.mask_BT),
        metrics={
            "gvpo/error": float(np.square(error_B).mean()) if len(error_B) else 0.0,
            "gvpo/reached": float(np.square(reached_B).mean()) if len(error_B) else 0.0,
        },
    )
