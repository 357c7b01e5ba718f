"""Distillation on-policy: towards a teacher, on the student's own tokens."""

import numpy as np

from trinity.algorithm.token_advantage.masked import masked, mean_and_std
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.errors import UserError


def on_policy_distill(
    batch: TokenBatch, *, kl_coef: float = 1.0, max_gap: float | None = None
) -> TokenAdvantages:
    """A = kl_coef (log p_teacher - log p_student) at each token, [B, T].

    Its expectation is minus the divergence KL(student, teacher). Both are at temperature 1,
    whatever rollouts were sampled at; the student is the policy before the step where rollouts may
    be older. `max_gap` clips the difference on both sides, as verl's
    `loss_max_clamp` does.
    https://arxiv.org/abs/2306.13649
    """
    if max_gap is not None and max_gap <= 0:
        raise UserError(f"`max_gap` of `on_policy_distill` is {max_gap}: give more than 0")
    gap_BT = masked(batch.needed("teacher") - batch.student_BT, batch.mask_BT)
    clipped_BT = gap_BT if max_gap is None else np.clip(gap_BT, -max_gap, max_gap)
    advantages_BT = kl_coef * clipped_BT
    kl_mean, kl_std = mean_and_std(-gap_BT)
    return TokenAdvantages(
        advantages_BT=advantages_BT,
        metrics={
            "kl/mean": kl_mean,
            "kl/std": kl_std,
            "advantages/mean": mean_and_std(advantages_BT)[0],
        },
    )
