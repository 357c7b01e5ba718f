"""KTO on rollouts: each answer is good or bad by itself, measured against the reference model."""

import numpy as np

from trinity.algorithm.token_advantage.masked import Groups, broadcast_rows, masked
from trinity.algorithm.token_advantage.token_batch import (
    BoolMatrix,
    FloatVector,
    TokenAdvantages,
    TokenBatch,
)
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit
from trinity.errors import UserError


def kto(
    batch: TokenBatch,
    *,
    beta: float = 0.1,
    threshold: float | None = None,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = w beta q (1 - q) at every token of a good answer, -A of a bad; q = sigmoid(beta (D - z)).

    D is the sum of log p - log p_reference over an answer's trained tokens, p the policy before
    each update; z is the mean of D over all answers, at least 0: for rollouts of the policy its
    divergence from the reference. Good are answers whose rewards s are above `threshold`, with
    None above their group's mean; those at that mean are left out. w is `desirable_weight` or
    `undesirable_weight`. With `gpg` and `seq-mean-token-sum` it is the gradient of
    w (1 - sigmoid(beta (D - z))) for good and w (1 - sigmoid(beta (z - D))) for bad answers.

    unit "run": a run is one answer, with the mean of its rows' s and the sum of their D; "sample":
        every row is.

    https://arxiv.org/abs/2402.01306
    """
    for name, value in (
        ("beta", beta),
        ("desirable_weight", desirable_weight),
        ("undesirable_weight", undesirable_weight),
    ):
        if value <= 0:
            raise UserError(f"algorithm.advantage_fn_args.{name} is {value}; give more than 0")
    units = Units.of_batch(batch, unit)
    gaps_BT = masked(batch.logprobs_BT - batch.needed("reference"), batch.mask_BT)
    scores_U, changes_U = units.means_U(batch.scores_B), units.sums_U(gaps_BT.sum(-1))
    has_tokens_U = units.sums_U(batch.mask_BT.sum(-1)) > 0
    is_good_U, is_bad_U = _judged(scores_U, units.groups, threshold)
    is_good_U, is_bad_U = is_good_U & has_tokens_U, is_bad_U & has_tokens_U
    shift = max(float(changes_U[has_tokens_U].mean()), 0.0) if has_tokens_U.any() else 0.0
    kept_U = 1 / (1 + np.exp(-np.clip(beta * (changes_U - shift), -500, 500)))
    weights_U = np.where(is_good_U, desirable_weight, 0.0) - np.where(
        is_bad_U, undesirable_weight, 0.0
    )
    mask_BT = batch.mask_BT & (is_good_U | is_bad_U)[units.number_B][:, None]
    advantages_B = units.spread_B(weights_U * beta * kept_U * (1 - kept_U))
    return TokenAdvantages(
        advantages_BT=broadcast_rows(advantages_B, mask_BT),
        mask_BT=mask_BT,
        metrics={
            "kto/divergence": shift,
            "kto/num_desirable": float(is_good_U.sum()),
            "kto/num_undesirable": float(is_bad_U.sum()),
        },
    )


def _judged(
    scores_U: FloatVector, groups: Groups, threshold: float | None
) -> tuple[BoolMatrix, BoolMatrix]:
    """Returns the good and the bad units; a group of equal scores has neither."""
    if threshold is not None:
        return scores_U > threshold, scores_U <= threshold
    means_U = groups.means_B(scores_U)
    differ_U = groups.maxima_B(scores_U) > -groups.maxima_B(-scores_U)
    return differ_U & (scores_U > means_U), differ_U & (scores_U < means_U)
