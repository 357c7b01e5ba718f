"""GPG: scores less their group's mean, scaled up where few rows of the batch have any score."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.errors import UserError


def gpg(batch: TokenBatch, *, f_norm: float = 1.0) -> TokenAdvantages:
    """A = B / m (s - mean of the group) / f_norm at every token; a single row: mean 0.

    s [B] is the sum of a row's rewards, m the number of rows whose s is not 0.
    https://arxiv.org/abs/2504.02546
    """
    if f_norm <= 0:
        raise UserError(f"algorithm.advantage_fn_args.f_norm is {f_norm}; give one above 0")
    scores_B = batch.scores_B
    alpha = len(scores_B) / max(int(np.count_nonzero(scores_B)), 1)
    scores_B = alpha * (scores_B - Groups.from_ids(batch.groups_B).baselines_B(scores_B)) / f_norm
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))
