"""Distillation by the policy gradient of the Jensen-Shannon divergence."""

import math

import numpy as np

from trinity.algorithm.token_advantage.masked import mean_and_std
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.errors import UserError

LARGEST_LOG_RATIO = 20.0


def jensen_shannon(
    batch: TokenBatch, *, lambda_coef: float = 0.5, kl_coef: float = 1.0
) -> TokenAdvantages:
    """A = kl_coef (1 - b) (log m - log s), m = b t + (1 - b) s, at each token, [B, T].

    t and s are the teacher's and the student's probability of the token, b is lambda_coef. Since JS
    = b KL(t, m) + (1 - b) KL(s, m) = E_s[f(t / s)], its gradient is E_s[(f - t/s f') grad log s]
    and f - t/s f' = (1 - b) log(s / m): A is positive where the teacher gives the token a higher
    probability, and never below (1 - b) log(1 - b) elsewhere. The metric is the mean of f, never
    negative. https://arxiv.org/abs/2306.13649
    """
    if not 0.0 < lambda_coef < 1.0:
        raise UserError(
            f"algorithm.advantage_fn_args.lambda_coef is {lambda_coef}; give one between 0 and 1, "
            "or choose on_policy_distill for the divergence at the end of 1"
        )
    mask_BT = batch.mask_BT
    log_ratio_N = batch.needed("teacher")[mask_BT] - batch.student_BT[mask_BT]
    mixture_N = np.logaddexp(math.log(lambda_coef) + log_ratio_N, math.log1p(-lambda_coef))
    advantages_BT, divergence_BT = np.zeros(mask_BT.shape), np.zeros(mask_BT.shape)
    advantages_BT[mask_BT] = kl_coef * (1.0 - lambda_coef) * mixture_N
    divergence_BT[mask_BT] = _divergence(log_ratio_N, lambda_coef)
    mean, std = mean_and_std(divergence_BT)
    advantage = mean_and_std(advantages_BT)[0]
    return TokenAdvantages(
        advantages_BT=advantages_BT,
        metrics={"jsd/mean": mean, "jsd/std": std, "advantages/mean": advantage},
    )


def _divergence(log_ratio_N: FloatVector, weight: float) -> FloatVector:
    """f(r) = b r log(r / (b r + 1 - b)) - (1 - b) log(b r + 1 - b)."""
    log_ratio_N = np.clip(log_ratio_N, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    mixture_N = np.logaddexp(math.log(weight) + log_ratio_N, math.log1p(-weight))
    teacher_N = weight * np.exp(log_ratio_N) * (log_ratio_N - mixture_N)
    divergence_N: FloatVector = teacher_N - (1.0 - weight) * mixture_N
    return divergence_N
