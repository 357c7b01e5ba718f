"""Clip-Cov's selection: random tokens among those whose update would reduce entropy strongly."""

import numpy as np

from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatVector
from trinity.algorithm.token_selection.selection_batch import SelectionBatch, num_selected

LARGEST_LOG_RATIO = 20.0


def select_clip_cov(
    batch: SelectionBatch,
    *,
    clip_range: float = 0.2,
    clip_range_low: float | None = None,
    clip_range_high: float | None = None,
    clip_cov_ratio: float = 0.0002,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
) -> BoolMatrix:
    """clip_cov_ratio of all tokens, among those with lb < cov < ub that PPO does not clip; [B, T].

    If there are more candidates, those with the smallest lots are taken; if fewer, all of them.
    https://arxiv.org/abs/2505.22617
    """
    low = clip_range if clip_range_low is None else clip_range_low
    high = clip_range if clip_range_high is None else clip_range_high
    covariances_N = batch.covariances()
    possible_N = (covariances_N > clip_cov_lb) & (covariances_N < clip_cov_ub)
    possible_N &= ~_clipped(batch, low, high)
    lots_N = np.where(possible_N, batch.lots_BT[batch.mask_BT], np.inf)
    most = min(num_selected(clip_cov_ratio, len(lots_N)), int(possible_N.sum()))
    chosen_N = np.zeros_like(possible_N)
    chosen_N[np.argsort(lots_N, kind="stable")[:most]] = True
    return batch.scatter(chosen_N)


def _clipped(batch: SelectionBatch, low: float, high: float) -> BoolMatrix:
    advantages_N: FloatVector = batch.advantages_BT[batch.mask_BT]
    log_ratios_N = (batch.logprobs_BT - batch.old_logprobs_BT)[batch.mask_BT]
    ratios_N = np.exp(np.clip(log_ratios_N, -LARGEST_LOG_RATIO, LARGEST_LOG_RATIO))
    clipped_N: BoolMatrix = -advantages_N * np.clip(ratios_N, 1 - low, 1 + high) > (
        -advantages_N * ratios_N
    )
    return clipped_N
