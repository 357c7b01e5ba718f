"""Statistics of a step's rows, and metrics of the gap between rollouts and the trained policy."""

from collections.abc import Mapping

import numpy as np

from services.trainer.estimation import row_means
from services.trainer.outcome import RowStatistics
from services.trainer.prepared import PreparedBatch
from services.trainer.rollouts import lags_of
from trinity.algorithm.rollout_correction.health import off_policy_metrics
from trinity.algorithm.token_advantage.token_batch import FloatMatrix

LARGEST_LOG_RATIO = 20.0


def row_statistics(prepared: PreparedBatch, logprobs_BT: FloatMatrix) -> dict[int, RowStatistics]:
    """Returns statistics of the rollouts that were trained on, by position in the batch."""
    numbers = np.flatnonzero(prepared.mask_BT.any(-1) & ~prepared.is_expert_B)
    mask_NT = prepared.mask_BT[numbers]
    differences_NT = (logprobs_BT - prepared.rollout_logprobs_BT)[numbers]
    ratios_NT = np.exp(np.clip(differences_NT, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    means = zip(
        numbers.tolist(),
        row_means(ratios_NT, mask_NT).tolist(),
        row_means(prepared.advantages_BT[numbers], mask_NT).tolist(),
        strict=True,
    )
    return {
        prepared.rows[number].position: RowStatistics(mean_ratio=ratio, advantage=advantage)
        for number, ratio, advantage in means
    }


def off_policy_figures(
    prepared: PreparedBatch, seen: Mapping[str, FloatMatrix]
) -> dict[str, float]:
    """Compares rollouts with the policy that the step started from; `seen` has its outputs."""
    numbers = np.flatnonzero(~prepared.is_expert_B)
    given_NT = prepared.given_mask_BT[numbers]
    if not given_NT.any():
        return {}

    def of_rollouts(matrix_BT: FloatMatrix | None) -> FloatMatrix | None:
        return None if matrix_BT is None else matrix_BT[numbers]

    logprobs_NT, rollout_NT = seen["logprobs"][numbers], prepared.rollout_logprobs_BT[numbers]
    clipped_NT = of_rollouts(seen.get("clipped"))
    figures = off_policy_metrics(
        logprobs_BT=logprobs_NT,
        rollout_logprobs_BT=rollout_NT,
        mask_BT=given_NT,
        entropies_BT=of_rollouts(seen.get("entropies")),
        weights_BT=of_rollouts(prepared.corrections_BT),
        clipped_BT=None if clipped_NT is None else clipped_NT > 0,
        kept_BT=prepared.mask_BT[numbers],
        lags_B=lags_of([prepared.rows[number] for number in numbers], prepared.batch.step),
    )
    gaps = np.abs(logprobs_NT - rollout_NT)[given_NT]
    return {
        "actor/rollout_logprob_diff": float(gaps.mean()),
        "actor/rollout_logprob_diff_max": float(gaps.max()),
        **figures,
    }
