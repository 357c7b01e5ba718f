"""Distillation by a per-token score that Trinity-RFT calls Jensen-Shannon divergence."""

import math

import numpy as np

from trinity.algorithm.token_advantage.masked import mean_and_std
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.errors import UserError


def jsd(
    batch: TokenBatch,
    *,
    lambda_coef: float = 0.5,
    kl_coef: float = 1.0,
    temperature: float = 1.0,
    chunk_size: int | None = None,
) -> TokenAdvantages:
    """A = -kl_coef d with d = b (t - m) + (1 - b) (s - m), m = log(b e^t + (1 - b) e^s), [B, T].

    t and s are the teacher's and the student's log-probability of the token, divided by the
    temperature; b is lambda_coef. b = 0: d = s - t; b = 1: d = t - s. Between them d is never above
    0, so every token is encouraged: `jensen_shannon` follows the divergence itself. `chunk_size`
    bounds the memory: it is the number of tokens processed at a time.
    """
    if not 0.0 <= lambda_coef <= 1.0:
        raise UserError(
            f"algorithm.advantage_fn_args.lambda_coef is {lambda_coef}; give one from 0 to 1"
        )
    mask_BT = batch.mask_BT
    student_N = batch.student_BT[mask_BT] / temperature
    teacher_N = batch.needed("teacher")[mask_BT] / temperature
    divergence_BT = np.zeros(mask_BT.shape)
    divergence_BT[mask_BT] = _chunked(student_N, teacher_N, lambda_coef, chunk_size)
    advantages_BT = -kl_coef * divergence_BT
    mean, std = mean_and_std(divergence_BT)
    advantage = mean_and_std(advantages_BT)[0]
    return TokenAdvantages(
        advantages_BT=advantages_BT,
        metrics={"jsd/mean": mean, "jsd/std": std, "advantages/mean": advantage},
    )


def _chunked(
    student_N: FloatVector, teacher_N: FloatVector, weight: float, chunk_size: int | None
) -> FloatVector:
    size = chunk_size or max(len(student_N), 1)
    scores_N = np.empty_like(student_N)
    for start in range(0, len(student_N), size):
        chunk = slice(start, start + size)
        scores_N[chunk] = _scores(student_N[chunk], teacher_N[chunk], weight)
    return scores_N


def _scores(student_N: FloatVector, teacher_N: FloatVector, weight: float) -> FloatVector:
    if weight in (0.0, 1.0):
        return student_N - teacher_N if weight == 0.0 else teacher_N - student_N
    mixture_N = np.logaddexp(math.log(weight) + teacher_N, math.log1p(-weight) + student_N)
    score_N: FloatVector = weight * (teacher_N - mixture_N) + (1.0 - weight) * (
        student_N - mixture_N
    )
    return score_N
