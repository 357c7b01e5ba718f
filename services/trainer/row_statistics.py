"""What a step taught about its rows and about how far rollouts are from the policy trained."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from services.trainer.prepared import PreparedBatch
from services.trainer.rollouts import lags_of
from trinity.algorithm.rollout_correction import off_policy_metrics
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix

LARGEST_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStatistics:
    """Means over a row's trained tokens."""

    mean_ratio: float
    """Probability by the policy that the step started from, over that by which it was made."""
    advantage: float


def row_statistics(prepared: PreparedBatch, logprobs_BT: FloatMatrix) -> dict[int, RowStatistics]:
    """By position in the batch, of the rollouts that were trained on."""
    mask_BT = _of_rollouts(prepared, prepared.mask_BT)
    differences_BT = logprobs_BT - prepared.rollout_logprobs_BT
    ratios_BT = np.exp(np.clip(differences_BT, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    numbers = np.flatnonzero(mask_BT.any(-1))
    tokens_N = mask_BT[numbers].sum(-1)
    ratios_N = np.where(mask_BT, ratios_BT, 0.0)[numbers].sum(-1) / tokens_N
    advantages_N = np.where(mask_BT, prepared.advantages_BT, 0.0)[numbers].sum(-1) / tokens_N
    return {
        prepared.rows[number].position: RowStatistics(mean_ratio=ratio, advantage=advantage)
        for number, ratio, advantage in zip(
            numbers.tolist(), ratios_N.tolist(), advantages_N.tolist(), strict=True
        )
    }


def off_policy_figures(
    prepared: PreparedBatch, seen: Mapping[str, FloatMatrix]
) -> dict[str, float]:
    """Rollouts against the policy that the step started from; `seen` is what was computed of it."""
    given_BT = _of_rollouts(prepared, prepared.given_mask_BT)
    if not given_BT.any():
        return {}
    logprobs_BT = seen["logprobs"]
    gaps = np.abs(logprobs_BT - prepared.rollout_logprobs_BT)[given_BT]
    clipped_BT = seen.get("clipped")
    figures = off_policy_metrics(
        logprobs_BT=logprobs_BT,
        rollout_logprobs_BT=prepared.rollout_logprobs_BT,
        mask_BT=given_BT,
        entropies_BT=seen.get("entropies"),
        weights_BT=prepared.corrections_BT,
        clipped_BT=None if clipped_BT is None else clipped_BT > 0,
        kept_BT=prepared.mask_BT,
        lags_B=lags_of(prepared.rows, prepared.batch.step),
    )
    return {
        "actor/rollout_logprob_diff": float(gaps.mean()),
        "actor/rollout_logprob_diff_max": float(gaps.max()),
        **figures,
    }


def _of_rollouts(prepared: PreparedBatch, mask_BT: BoolMatrix) -> BoolMatrix:
    found: BoolMatrix = mask_BT & ~prepared.is_expert_B[:, None]
    return found
