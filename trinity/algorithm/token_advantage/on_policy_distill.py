"""Distillation on-policy: towards a teacher, on the student's own tokens."""

from trinity.algorithm.token_advantage.masked import masked, mean_and_std
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch


def on_policy_distill(batch: TokenBatch, *, kl_coef: float = 1.0) -> TokenAdvantages:
    """A = kl_coef (log p_teacher - log p_student) at each token, [B, T].

    Its expectation is minus the divergence KL(student, teacher).
    https://arxiv.org/abs/2306.13649
    """
    gap_BT = masked(batch.needed("teacher") - batch.logprobs_BT, batch.mask_BT)
    advantages_BT = kl_coef * gap_BT
    kl_mean, kl_std = mean_and_std(-gap_BT)
    return TokenAdvantages(
        advantages_BT=advantages_BT,
        metrics={
            "kl/mean": kl_mean,
            "kl/std": kl_std,
            "advantages/mean": mean_and_std(advantages_BT)[0],
        },
    )
