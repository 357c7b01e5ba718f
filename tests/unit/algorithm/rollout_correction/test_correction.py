"""What the corrections mean, in words and numbers, and what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithm.rollout_correction.gaps import Gap, random_gap
from tests.unit.subtests import as_subtests
from trinity.algorithm.rollout_correction.correction import CorrectionResult, correct_rollout
from trinity.algorithm.rollout_correction.settings import PRESETS, REJECTIONS, CorrectionSettings
from trinity.errors import UserError

choices = st.sampled_from(
    [
        *(preset.settings for preset in PRESETS.values()),
        *(
            CorrectionSettings(
                rollout_is=level,
                rollout_is_batch_normalize=True,
                rollout_rs=option,
                rollout_rs_threshold=1.2,
            )
            for level in ("token", "sequence")
            for option in REJECTIONS
        ),
    ]
)
seeds = st.integers(0, 2**32 - 1)


def corrected(gap: Gap, chosen: CorrectionSettings) -> CorrectionResult:
    return correct_rollout(
        proximal_logprobs_BT=gap.proximal_BT,
        rollout_logprobs_BT=gap.rollout_BT,
        mask_BT=gap.mask_BT,
        settings=chosen,
    )


def ratios(*numbers: float) -> Gap:
    """One row whose tokens have these ratios."""
    log_ratio_BT = np.log([numbers])
    return Gap(log_ratio_BT, np.zeros_like(log_ratio_BT), np.ones(log_ratio_BT.shape, np.bool_))


def test_truncation_cuts_large_ratios_down_and_leaves_small_ones() -> None:
    correction = corrected(ratios(0.1, 1.0, 1.9, 30.0), PRESETS["tis"].settings)
    assert correction.weights_BT == pytest.approx(np.array([[0.1, 1.0, 1.9, 2.0]]))
    assert correction.mask_BT.all()


def test_tokens_of_other_weights_in_the_same_row_change_no_correction() -> None:
    """A row whose weights changed is corrected as the parts of each of its weights are."""
    gap = random_gap(3, size=0.6)
    by_token = CorrectionSettings(
        rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=1.2
    )
    whole = corrected(gap, by_token)
    for swap in range(1, gap.mask_BT.shape[1]):
        for part in (np.s_[:, :swap], np.s_[:, swap:]):
            rows = gap.mask_BT[part].any(1)
            if not rows.any():
                continue
            alone = corrected(
                Gap(
                    gap.proximal_BT[part][rows], gap.rollout_BT[part][rows], gap.mask_BT[part][rows]
                ),
                by_token,
            )
            assert whole.weights_BT is not None and alone.weights_BT is not None
            assert (alone.weights_BT == whole.weights_BT[part][rows]).all()
            assert (alone.mask_BT == whole.mask_BT[part][rows]).all()


def test_icepop_makes_nothing_of_ratios_outside_and_leaves_the_mask() -> None:
    correction = corrected(ratios(0.4, 0.5000001, 1.0, 4.9, 5.1), PRESETS["icepop"].settings)
    assert correction.weights_BT == pytest.approx(np.array([[0.0, 0.5000001, 1.0, 4.9, 0.0]]))
    assert correction.mask_BT.all()
    assert correction.metrics["rollout_corr/rollout_is_oob_ratio"] == pytest.approx(0.4)


def test_a_row_has_one_weight_the_product_of_its_ratios() -> None:
    correction = corrected(ratios(0.5, 3.0, 1.1), PRESETS["seq_tis"].settings)
    assert correction.weights_BT == pytest.approx(np.full((1, 3), 1.65))


def test_normalized_weights_have_mean_one() -> None:
    gap = random_gap(3, size=0.5)
    chosen = CorrectionSettings(rollout_is="token", rollout_is_batch_normalize=True)
    correction = corrected(gap, chosen)
    assert correction.weights_BT is not None
    assert correction.weights_BT[gap.mask_BT].mean() == pytest.approx(1.0)


def test_one_upper_bound_of_the_ratio_bounds_it_from_below_by_its_inverse() -> None:
    chosen = CorrectionSettings(rollout_rs="token_k1", rollout_rs_threshold=2.0)
    correction = corrected(ratios(0.49, 0.51, 1.0, 1.99, 2.01), chosen)
    assert correction.mask_BT.tolist() == [[False, True, True, True, False]]


def test_a_row_is_rejected_whole() -> None:
    chosen = CorrectionSettings(rollout_rs="seq_max_k2", rollout_rs_threshold=0.1)
    assert not corrected(ratios(1.0, 1.0, 3.0), chosen).mask_BT.any()


def test_one_token_that_became_next_to_impossible_vetoes_its_row() -> None:
    chosen = CorrectionSettings(rollout_token_veto_threshold=1e-4)
    vetoed = corrected(ratios(1.0, 0.9e-4, 1.0), chosen)
    assert vetoed.mask_BT.tolist() == [[False, False, False]]
    assert vetoed.metrics["rollout_corr/rollout_is_veto_fraction"] == 1.0
    assert vetoed.metrics["rollout_corr/rollout_is_catastrophic_token_fraction"] == pytest.approx(
        1 / 3
    )
    kept = corrected(ratios(1.0, 1.1e-4, 1e4), chosen)
    assert kept.mask_BT.all()
    unmasked = ratios(1.0, 0.9e-4)
    unmasked.mask_BT[0, 1] = False
    assert corrected(unmasked, chosen).mask_BT.tolist() == [[True, False]]
    assert chosen.is_on


def test_equal_policies_need_no_correction() -> None:
    gap = random_gap(1, size=0.0)
    for preset in PRESETS.values():
        correction = corrected(gap, preset.settings)
        assert (correction.mask_BT == gap.mask_BT).all()
        if correction.weights_BT is not None:
            assert correction.weights_BT[gap.mask_BT] == pytest.approx(1.0)
        assert correction.metrics["rollout_corr/kl"] == pytest.approx(0.0, abs=1e-12)


@settings(max_examples=120)
@given(seed=seeds, chosen=choices)
def test_order_padding_and_rubbish_outside_the_mask_play_no_part(
    seed: int, chosen: CorrectionSettings
) -> None:
    gap = random_gap(seed, size=0.5, empty=True)
    order = np.random.default_rng(seed).permutation(len(gap.mask_BT))
    spoilt = [np.where(gap.mask_BT, x, np.nan) for x in (gap.proximal_BT, gap.rollout_BT)]
    filler = np.full((len(order), 7), np.nan)
    proximal_BT, rollout_BT = (np.concatenate([x, filler], axis=1)[order] for x in spoilt)
    mask_BT = np.concatenate([gap.mask_BT, filler > 0], axis=1)[order]
    before, after = corrected(gap, chosen), corrected(Gap(proximal_BT, rollout_BT, mask_BT), chosen)
    np.testing.assert_array_equal(after.mask_BT[:, :-7], before.mask_BT[order])
    assert not after.mask_BT[:, -7:].any()
    if before.weights_BT is not None:
        assert after.weights_BT is not None
        np.testing.assert_allclose(after.weights_BT[:, :-7], before.weights_BT[order], rtol=1e-9)
        assert not after.weights_BT[~mask_BT].any()
    assert dict(after.metrics) == pytest.approx(dict(before.metrics), rel=1e-6, abs=1e-9)


@settings(max_examples=80)
@given(seed=seeds, chosen=choices, size=st.sampled_from([20.0, 1e4]))
def test_policies_far_apart_give_finite_numbers(
    seed: int, chosen: CorrectionSettings, size: float
) -> None:
    correction = corrected(random_gap(seed, size=size, empty=True), chosen)
    assert correction.weights_BT is None or np.isfinite(correction.weights_BT).all()
    assert all(np.isfinite(value) for value in correction.metrics.values())


def test_a_batch_without_tokens_is_left_alone() -> None:
    gap = random_gap(0)
    nothing = np.zeros_like(gap.mask_BT)
    for preset in PRESETS.values():
        correction = corrected(replace(gap, mask_BT=nothing), preset.settings)
        assert correction == CorrectionResult(weights_BT=None, mask_BT=nothing)


@as_subtests(
    ("wrong", "text"),
    [
        ({"rollout_is": "token", "rollout_is_threshold": "two"}, "rollout_is_threshold` is 'two'"),
        ({"rollout_is": "token", "rollout_is_threshold": 0.0}, "numbers above 0"),
        ({"rollout_is": "token", "rollout_is_threshold": "5_0.5"}, "the lower one first"),
        ({"rollout_is": "token", "rollout_is_threshold": float("nan")}, "numbers above 0"),
        ({"rollout_rs": "token_k4", "rollout_rs_threshold": 1}, "'token_k4' is none of token_k1"),
        ({"rollout_rs": "", "rollout_rs_threshold": 1}, "'' is none of"),
        ({"rollout_rs": "token_k1"}, "rollout_rs_threshold` is missing"),
        ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "token_k2 takes one number"),
        ({"rollout_rs": "token_k2,token_k3", "rollout_rs_threshold": "1,2,3"}, "3 parts for 2"),
        ({"rollout_rs": "token_k1", "rollout_rs_threshold": "0.5_x"}, "is '0.5_x': give a number"),
    ],
)
def test_settings_that_cannot_be_are_named(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(UserError, match=text):
        CorrectionSettings(**wrong).check()  # type: ignore[arg-type]


def test_every_preset_can_be() -> None:
    for preset in PRESETS.values():
        preset.settings.check()
