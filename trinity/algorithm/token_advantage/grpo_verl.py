"""GRPO in the trainer, for rewards that are given per token or carry a KL penalty."""

from functools import partial

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import compare_scores
from trinity.algorithm.units import Unit


def grpo_verl(
    batch: TokenBatch,
    *,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = (s - mean of the group) / (std of the group + epsilon), at every token.

    s [B] is the sum of a row's rewards; std is unbiased; a single unit: mean 0, std 1. Without
    the division by std it is Dr. GRPO's.

    unit "run": each run counts once in its group, with the mean of its rows' s, and all its rows
        get its A; "sample": every row counts.

    https://arxiv.org/abs/2402.03300, https://arxiv.org/abs/2503.20783
    """
    scores_B = normalized_scores(
        batch, unit, epsilon=epsilon, divide_by_std=norm_adv_by_std_in_grpo
    )
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))


def normalized_scores(
    batch: TokenBatch, unit: Unit, *, epsilon: float, divide_by_std: bool = True
) -> FloatVector:
    """Returns the rows' advantages, [B]."""
    normalize = partial(normalize_in_groups, epsilon=epsilon, divide_by_std=divide_by_std)
    return compare_scores(batch, unit, normalize)


def normalize_in_groups(
    scores_B: FloatVector, groups: Groups, *, epsilon: float, divide_by_std: bool
) -> FloatVector:
    """Returns scores less their group's mean, optionally over its standard deviation, [B]."""
    centered_B = scores_B - groups.baselines_B(scores_B)
    return centered_B / (groups.stds_B(scores_B) + epsilon) if divide_by_std else centered_B
