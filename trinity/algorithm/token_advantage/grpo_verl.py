"""GRPO in the trainer, for rewards that are given per token or carry a KL penalty."""

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch


def grpo_verl(
    batch: TokenBatch, *, epsilon: float = 1e-6, norm_adv_by_std_in_grpo: bool = True
) -> TokenAdvantages:
    """A = (s - mean of the group) / (std of the group + epsilon), at every token.

    s [B] is the sum of a row's rewards; std is unbiased; a single row: mean 0, std 1. Without the
    division by std it is Dr. GRPO's. https://arxiv.org/abs/2402.03300,
    https://arxiv.org/abs/2503.20783
    """
    scores_B = normalized_scores(batch, epsilon=epsilon, divide_by_std=norm_adv_by_std_in_grpo)
    return TokenAdvantages(advantages_BT=broadcast_rows(scores_B, batch.mask_BT))


def normalized_scores(
    batch: TokenBatch, *, epsilon: float, divide_by_std: bool = True
) -> FloatVector:
    """Returns the rows' advantages, [B]."""
    groups = Groups.from_ids(batch.groups_B)
    return normalize_in_groups(batch.scores_B, groups, epsilon=epsilon, divide_by_std=divide_by_std)


def normalize_in_groups(
    scores_B: FloatVector, groups: Groups, *, epsilon: float, divide_by_std: bool
) -> FloatVector:
    """Returns scores less their group's mean, optionally over its standard deviation, [B]."""
    centered_B = scores_B - groups.baselines_B(scores_B)
    return centered_B / (groups.stds_B(scores_B) + epsilon) if divide_by_std else centered_B
