"""The correction of one batch: factors, mask, and metrics of the mismatch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from trinity.algorithm.rollout_correction.divergence import divergence_metrics
from trinity.algorithm.rollout_correction.importance import importance_weights
from trinity.algorithm.rollout_correction.rejection import rejected
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.token_advantage.masked import kept
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Factors on the losses of tokens, and the mask of tokens that still count."""

    weights_BT: FloatMatrix | None
    """None is 1 everywhere; 0 where the batch's mask is false."""
    mask_BT: BoolMatrix
    metrics: Mapping[str, float] = field(default_factory=dict)


def correct_rollout(
    *,
    proximal_logprobs_BT: FloatMatrix,
    rollout_logprobs_BT: FloatMatrix,
    mask_BT: BoolMatrix,
    settings: CorrectionSettings,
) -> Correction:
    """Applies `settings` to the ratio r = exp(proximal - rollout) at each token, [B, T].

    correction = correct_rollout(
        proximal_logprobs_BT=...,
        rollout_logprobs_BT=...,
        mask_BT=...,
        settings=PRESETS["icepop"].settings,
    )
    """
    if not mask_BT.any():
        return Correction(weights_BT=None, mask_BT=mask_BT)
    log_ratio_BT = kept(proximal_logprobs_BT - rollout_logprobs_BT, mask_BT)
    metrics: dict[str, float] = {}
    weights_BT = None
    bounds = settings.weight_bounds()
    if bounds is not None:
        weights_BT, figures = importance_weights(
            log_ratio_BT,
            mask_BT,
            bounds,
            by_row=settings.rollout_is == "sequence",
            normalize=settings.rollout_is_batch_normalize,
        )
        metrics |= figures
    rejected_BT, figures = rejected(log_ratio_BT, mask_BT, settings.rejection_bounds())
    metrics |= figures
    metrics |= divergence_metrics(proximal_logprobs_BT, rollout_logprobs_BT, mask_BT)
    return Correction(
        weights_BT=weights_BT,
        mask_BT=mask_BT & ~rejected_BT,
        metrics={f"rollout_corr/{name}": value for name, value in metrics.items()},
    )
