"""Weights, masks and figures are verl's, under verl's names."""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np
import pytest
import torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo import rollout_corr_helper as verl

from tests.unit.algorithm.rollout_correction.gaps import Gap, random_gap
from tests.unit.subtests import as_subtests
from trinity.algorithm.rollout_correction.correction import CorrectionResult, correct_rollout
from trinity.algorithm.rollout_correction.settings import (
    PRESETS,
    REJECTIONS,
    CorrectionSettings,
    PresetName,
)

SETTINGS = [
    CorrectionSettings(),
    CorrectionSettings(rollout_is="token"),
    CorrectionSettings(rollout_is="token", rollout_is_threshold="1.5"),
    CorrectionSettings(rollout_is="token", rollout_is_batch_normalize=True),
    CorrectionSettings(rollout_is="token", rollout_is_threshold="0.8_1.3"),
    CorrectionSettings(
        rollout_is="token", rollout_is_threshold="0.8_1.3", rollout_is_batch_normalize=True
    ),
    CorrectionSettings(rollout_is="sequence"),
    CorrectionSettings(rollout_is="sequence", rollout_is_threshold="0.5_5"),
    CorrectionSettings(rollout_is="sequence", rollout_is_batch_normalize=True),
    *(
        CorrectionSettings(rollout_rs=option, rollout_rs_threshold=threshold)
        for option in REJECTIONS
        for threshold in (("0.8_1.1", 1.5) if option.endswith("k1") else (0.05, "0.4"))
    ),
    CorrectionSettings(
        rollout_is="token", rollout_rs="token_k1, seq_max_k2,token_k1", rollout_rs_threshold="2,0.5"
    ),
    CorrectionSettings(rollout_rs="seq_mean_k3,seq_max_k3", rollout_rs_threshold=0.2),
    *(preset.settings for preset in PRESETS.values()),
]


@pytest.fixture(params=[(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["float64", "float32"])
def precision(request: pytest.FixtureRequest) -> Iterator[tuple[torch.dtype, float]]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param[0])
    yield request.param
    torch.set_default_dtype(before)


def ours(gap: Gap, settings: CorrectionSettings) -> CorrectionResult:
    return correct_rollout(
        proximal_logprobs_BT=gap.proximal_BT,
        rollout_logprobs_BT=gap.rollout_BT,
        mask_BT=gap.mask_BT,
        settings=settings,
    )


def in_words_of_verl(settings: CorrectionSettings) -> dict[str, object]:
    words = {key: None if value == "none" else value for key, value in asdict(settings).items()}
    del words["rollout_token_veto_threshold"]  # of veRL's release before
    return words


def theirs(
    gap: Gap, settings: CorrectionSettings, dtype: torch.dtype
) -> tuple[torch.Tensor | None, torch.Tensor, dict[str, float]]:
    weights, mask, metrics = verl.compute_rollout_correction_and_rejection_mask(
        *gap.tensors(dtype), **in_words_of_verl(settings)
    )
    return None if weights is None else weights.batch["rollout_is_weights"], mask, metrics


@as_subtests("settings", SETTINGS)
def test_gives_what_verl_gives(
    settings: CorrectionSettings, precision: tuple[torch.dtype, float]
) -> None:
    dtype, tolerance = precision
    for seed, size in enumerate((0.01, 0.3, 3.0)):
        gap = random_gap(seed, size=size)
        correction = ours(gap, settings)
        weights, mask, metrics = theirs(gap, settings, dtype)
        if weights is None:
            assert correction.weights_BT is None
        else:
            assert correction.weights_BT is not None
            np.testing.assert_allclose(
                correction.weights_BT, weights.numpy(), rtol=10 * tolerance, atol=tolerance
            )
        np.testing.assert_array_equal(correction.mask_BT, mask.numpy() > 0)
        if dtype == torch.float64:
            assert dict(correction.metrics) == pytest.approx(metrics, rel=1e-9, abs=1e-9)


def test_rows_without_tokens_change_neither_weights_nor_mask() -> None:
    for settings in SETTINGS:
        gap = random_gap(5, empty=True)
        correction = ours(gap, settings)
        weights, mask, _ = theirs(gap, settings, torch.float64)
        if weights is not None:
            assert correction.weights_BT is not None
            np.testing.assert_allclose(correction.weights_BT, weights.numpy(), rtol=1e-9)
        np.testing.assert_array_equal(correction.mask_BT, mask.numpy() > 0)


@pytest.mark.parametrize(
    ("preset", "of_verl"),
    [
        ("tis", RolloutCorrectionConfig.decoupled_token_is()),
        ("seq_tis", RolloutCorrectionConfig.decoupled_seq_is()),
        ("icepop", RolloutCorrectionConfig.decoupled_token_icepop()),
        ("seq_mis", RolloutCorrectionConfig.decoupled_seq_is_rs()),
        ("geo_rs", RolloutCorrectionConfig.decoupled_geo_rs()),
        ("k3_rs", RolloutCorrectionConfig.decoupled_k3_rs()),
    ],
)
def test_presets_are_those_of_verl(preset: PresetName, of_verl: RolloutCorrectionConfig) -> None:
    ours = PRESETS[preset].settings
    assert in_words_of_verl(ours) == {key: of_verl[key] for key in in_words_of_verl(ours)}
