"""REINFORCE++ with a baseline: scores less their group's mean, normalized over the batch."""

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows, whitened
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def reinforce_plus_plus_baseline(batch: TokenBatch) -> TokenAdvantages:
    """A_t = s - mean of the group, at every token, whitened over the mask; a single row: s.

    s [B] is the sum of a row's rewards. https://arxiv.org/abs/2501.03262
    """
    scores_B = batch.scores_B
    scores_B = scores_B - Groups.from_ids(batch.groups_B).baselines_B(scores_B)
    advantages_BT = whitened(broadcast_rows(scores_B, batch.mask_BT), batch.mask_BT)
    return TokenAdvantages(advantages_BT=advantages_BT)
