"""AsymRE in the trainer: scores less their group's mean, which is shifted."""

import numpy as np

from trinity.algorithm.token_advantage.masked import broadcast_rows
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit


def asymre_verl(
    batch: TokenBatch, *, baseline_shift: float = -0.1, unit: Unit = "run"
) -> TokenAdvantages:
    """A = s - (mean of the group + baseline_shift) at every token; a single unit: s.

    s [B] is the sum of a row's rewards. A negative shift weights success above failure, which makes
    learning from old rollouts safer.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2506.20520
    """
    scores_B = compare_scores(
        batch,
        unit,
        lambda scores_U, groups: (
            scores_U
            - (groups.baselines_B(scores_U) + np.where(groups.sizes_B > 1, baseline_shift, 0.0))
        ),
    )
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))
