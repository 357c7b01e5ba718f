"""Subtracts the divergence from the reference from the rewards, per token."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from trinity.algorithm.kl import DIVERGENCES
from trinity.algorithm.token_advantage.masked import masked, row_means
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix, FloatVector
from trinity.errors import UserError

Estimator = Callable[[FloatVector, FloatVector, FloatVector], FloatVector]
LARGEST_LOG_RATIO = 20.0
LARGEST_KL = 10.0
LARGEST_CORRECTION = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """Rewards with the penalty subtracted."""

    rewards_BT: FloatMatrix
    kl: float
    """Mean, over rows with tokens, of a row's mean; the input of an adaptive coefficient."""
    metrics: Mapping[str, float]


def kl_penalty(
    rewards_BT: FloatMatrix,
    *,
    estimator: str,
    coef: float,
    logprobs_BT: FloatMatrix,
    reference_logprobs_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    rollout_logprobs_BT: FloatMatrix | None = None,
) -> KlPenalty:
    """rewards - coef kl mask, kl by `estimator` of the policy before the step, all [B, T].

    Raises: UserError when there is no such estimator.
    """
    estimate = _own(estimator) if DIVERGENCES.is_own(estimator) else ESTIMATORS.get(estimator)
    if estimate is None and "." in estimator:
        estimate = _own(estimator)
    if estimate is None:
        raise UserError(f"algorithm.kl_penalty_fn {estimator!r} is none of {', '.join(ESTIMATORS)}")
    rollout_BT = logprobs_BT if rollout_logprobs_BT is None else rollout_logprobs_BT
    divergence_BT = np.zeros(mask_BT.shape)
    divergence_BT[mask_BT] = estimate(
        logprobs_BT[mask_BT], reference_logprobs_BT[mask_BT], rollout_BT[mask_BT]
    )
    rows_B = mask_BT.any(-1)
    kl = float(row_means(divergence_BT, mask_BT)[rows_B].mean()) if rows_B.any() else 0.0
    return KlPenalty(
        rewards_BT=rewards_BT - coef * masked(divergence_BT, mask_BT),
        kl=kl,
        metrics={"kl": kl, "kl_coef": coef},
    )


def _own(name: str) -> Estimator:
    """Returns a user's estimator, which takes tensors, as a function of arrays."""
    import torch  # the built-in estimators do not need it

    function = DIVERGENCES.get(name)

    def estimate(*logprobs: FloatVector) -> FloatVector:
        with torch.no_grad():
            divergence: FloatVector = function(*map(torch.from_numpy, logprobs)).numpy()
        return divergence

    return estimate


def _k1(logprobs_N: FloatVector, reference_N: FloatVector, _: FloatVector) -> FloatVector:
    return logprobs_N - reference_N


def _k2(logprobs_N: FloatVector, reference_N: FloatVector, _: FloatVector) -> FloatVector:
    return 0.5 * np.square(logprobs_N - reference_N)


def _k3(logprobs_N: FloatVector, reference_N: FloatVector, _: FloatVector) -> FloatVector:
    difference_N = np.clip(reference_N - logprobs_N, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    divergence_N: FloatVector = np.expm1(difference_N) - difference_N
    return divergence_N


def _low_var_kl(
    logprobs_N: FloatVector, reference_N: FloatVector, rollout_N: FloatVector
) -> FloatVector:
    return np.minimum(_k3(logprobs_N, reference_N, rollout_N), LARGEST_KL)


def _absolute(logprobs_N: FloatVector, reference_N: FloatVector, _: FloatVector) -> FloatVector:
    return np.abs(logprobs_N - reference_N)


def _corrected_k3(
    logprobs_N: FloatVector, reference_N: FloatVector, rollout_N: FloatVector
) -> FloatVector:
    log_ratio_N = np.clip(logprobs_N - rollout_N, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    correction_N: FloatVector = np.minimum(np.exp(log_ratio_N), LARGEST_CORRECTION)
    return correction_N * _k3(logprobs_N, reference_N, rollout_N)


ESTIMATORS: Mapping[str, Estimator] = {
    "k1": _k1,
    "k2": _k2,
    "k3": _k3,
    "low_var_kl": _low_var_kl,
    "abs": _absolute,
    "corrected_k3": _corrected_k3,
    "k1+": _k1,
    "k3+": _low_var_kl,
}
"""The numpy versions of `estimators`, without gradients."""
