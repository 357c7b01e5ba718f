"""REINFORCE++ with a baseline: scores less their group's mean, normalized over the batch."""

from trinity.algorithm.token_advantage.masked import broadcast_rows, whitened
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit


def reinforce_plus_plus_baseline(batch: TokenBatch, *, unit: Unit = "run") -> TokenAdvantages:
    """A_t = s - mean of the group, at every token, whitened over the mask; a single unit: s.

    s [B] is the sum of a row's rewards. Whitening is over all trained tokens of the batch.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2501.03262
    """
    scores_B = compare_scores(
        batch, unit, lambda scores_U, groups: scores_U - groups.baselines_B(scores_U)
    )
    advantages_BT = whitened(broadcast_rows(scores_B, batch.mask_BT), batch.mask_BT)
    return TokenAdvantages(advantages_BT=advantages_BT)
