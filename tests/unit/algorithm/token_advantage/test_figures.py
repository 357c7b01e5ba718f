"""What advantages report beside the numbers that are trained on, and what they make of nothing."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.algorithm.token_advantage.batches import random_batch
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.masked import (
    EPSILON,
    Groups,
    clipped_fractions,
    masked_mean,
    mean_and_std,
    row_means,
    whitened,
)
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.errors import UserError

VALUES = np.array([[1.0, 2.0, 30.0], [4.0, 50.0, 60.0], [7.0, 8.0, 9.0]])
MASK = np.array([[True, True, False], [True, False, False], [False, False, False]])


def figures(name: str, batch: TokenBatch, **arguments: object) -> dict[str, float]:
    found = TOKEN_ADVANTAGES.get(name)(batch, **arguments)
    return dict(found.metrics)


def scored(scores: list[float], lengths: list[int]) -> TokenBatch:
    """Rows of one group with these rewards and numbers of tokens."""
    batch = random_batch(0, num_rows=len(scores), num_tokens=max(lengths))
    mask_BT = np.arange(max(lengths)) < np.array(lengths)[:, None]
    rewards_BT = np.zeros(mask_BT.shape)
    rewards_BT[:, 0] = scores
    groups_B = np.zeros(len(scores), np.int64)
    return replace(batch, mask_BT=mask_BT, rewards_BT=rewards_BT, groups_B=groups_B)


def test_gfpo_tells_how_many_answers_it_keeps_and_how_long_they_are() -> None:
    found = figures("gfpo", scored([1.0, 0.0, 1.0, 0.0], [9, 2, 4, 5]), num_kept=2)
    assert found == {"gfpo/kept_ratio": 0.5, "gfpo/kept_length": 3.0, "gfpo/length": 5.0}


def test_online_dpo_tells_the_share_of_pairs_in_the_right_order() -> None:
    batch = scored([1.0, 0.0] * 4, [3] * 8)
    gains_B = np.array([0.5, 0.1, -0.5, 0.1, 0.5, 0.1, 0.5, 0.1])
    changed = replace(
        batch,
        groups_B=np.repeat(np.arange(4), 2),
        reference_logprobs_BT=batch.logprobs_BT - gains_B[:, None],
    )
    found = figures("online_dpo", changed, beta=0.5)
    assert found["online_dpo/num_pairs"] == 4
    assert found["online_dpo/accuracy"] == 0.75
    assert found["online_dpo/margin"] == pytest.approx(0.5 * 3 * (3 * 0.4 - 0.6) / 4)


def test_gvpo_tells_the_squares_of_its_error_and_of_what_the_policy_reached() -> None:
    """Scores +-1/2 and beta D = +-0.2 around their means: an error of +-0.3."""
    batch = scored([1.0, 0.0], [2, 3])
    gains_B = np.array([0.5, 0.0])
    changed = replace(batch, rollout_logprobs_BT=batch.logprobs_BT - gains_B[:, None])
    found = figures("gvpo", changed, beta=0.4)
    assert found == pytest.approx({"gvpo/error": 0.09, "gvpo/reached": 0.04})


def test_kto_leaves_out_an_answer_that_is_its_groups_mean() -> None:
    found = TOKEN_ADVANTAGES.get("kto")(scored([0.0, 0.5, 1.0], [2] * 3))
    assert found.mask_BT is not None
    assert found.mask_BT.any(-1).tolist() == [True, False, True]
    assert found.metrics["kto/num_desirable"] == found.metrics["kto/num_undesirable"] == 1.0


def test_gpg_scales_by_the_one_answer_of_four_that_has_a_score() -> None:
    found = TOKEN_ADVANTAGES.get("gpg")(scored([1.0, 0.0, 0.0, 0.0], [1] * 4))
    assert found.advantages_BT[:, 0].tolist() == [3.0, -1.0, -1.0, -1.0]


def test_pf_ppo_tells_how_many_rows_carry_the_weight() -> None:
    scores = [1.0, 2.0, 0.0, 3.0]
    found = figures("pf_ppo", scored(scores, [2] * 4), weight_pow=1.0)
    assert found["pf_ppo/effective_rows"] == pytest.approx(6**2 / (1 + 4 + 9), rel=1e-6)


def test_gdpo_tells_the_range_of_each_part() -> None:
    parts = {"right": np.array([0.0, 1.0, 0.5, 0.5])}
    found = figures("gdpo", replace(scored([0.0] * 4, [2] * 4), reward_parts=parts))
    assert (found["gdpo/right/min"], found["gdpo/right/max"]) == (0.0, 1.0)
    assert found["gdpo/right/mean"] == 0.5


def test_fractions_of_positive_and_negative_tokens_count_neither_zeros_nor_others() -> None:
    advantages_BT = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, -1.0]])
    mask_BT = np.array([[True, True, True], [True, True, False]])
    kept_BT = np.array([[True, False, False], [True, False, False]])
    found = clipped_fractions(advantages_BT, mask_BT, kept_BT)
    assert found["frac_clipped"] == pytest.approx(3 / 5)
    assert found["frac_clipped_pos"] == pytest.approx(1 / 2)
    assert found["frac_clipped_neg"] == pytest.approx(1 / 2)


@pytest.mark.parametrize("name", ["clipb", "clipv", "gfpo", "gvpo", "kto", "online_dpo"])
def test_of_a_batch_without_rows_every_figure_is_zero(name: str) -> None:
    batch = random_batch(0, num_rows=1)
    empty = replace(
        batch,
        **{
            field: getattr(batch, field)[:0]
            for field in ("rewards_BT", "mask_BT", "lengths_B", "groups_B", "logprobs_BT")
        },
        **{
            field: getattr(batch, field)[:0]
            for field in ("rollout_logprobs_BT", "entropies_BT", "discriminator_BT")
        },
        reference_logprobs_BT=batch.logprobs_BT[:0],
    )
    found = figures(name, empty)
    assert found and set(found.values()) == {0.0}


def test_a_row_without_tokens_is_in_no_group_of_the_token_baseline() -> None:
    """The other row is alone, so that nothing is taken off its reward."""
    batch = scored([0.0, 1.0], [0, 1])
    apart = replace(batch, groups_B=np.arange(2))
    found = TOKEN_ADVANTAGES.get("tir_optimal_token_baseline")(apart, handle_zero_tail=False)
    assert found.advantages_BT.tolist() == [[0.0], [1.0]]


def test_means_are_over_the_tokens_of_the_mask() -> None:
    np.testing.assert_allclose(row_means(VALUES, MASK), [1.5, 4.0, 0.0], rtol=1e-7)
    assert masked_mean(VALUES, MASK) == pytest.approx(7 / (3 + EPSILON), rel=1e-12)


def test_two_tokens_are_enough_to_be_whitened_and_one_is_not() -> None:
    two_BT = np.array([[True, True, False]])
    np.testing.assert_allclose(
        whitened(VALUES[:1], two_BT), [[-(0.5**0.5), 0.5**0.5, 0.0]], rtol=1e-6
    )
    assert not whitened(VALUES[1:2], MASK[1:2]).any()


def test_sums_of_no_rows_are_zero_and_a_row_alone_has_no_spread() -> None:
    assert mean_and_std(np.zeros((0, 3))) == (0.0, 0.0)
    assert mean_and_std(VALUES[:1]) == (33.0, 0.0)
    assert Groups.from_ids(np.zeros(0, np.int64)).sums_GT(np.zeros((0, 5))).shape == (0, 5)


@pytest.mark.parametrize("most", [1, 3, 7])
def test_clipv_leaves_out_the_worst_of_many(most: int) -> None:
    """All tokens of bad answers are candidates; their order is by chance."""
    batch = scored([1.0, 0.0, 0.0, 0.0], [200] * 4)
    draw = np.random.default_rng(most)
    zeros_BT = np.zeros(batch.mask_BT.shape)
    certain = replace(
        batch,
        logprobs_BT=zeros_BT,
        entropies_BT=zeros_BT,
        discriminator_BT=1.0 + draw.permutation(800).reshape(4, 200).astype(np.float64),
    )
    found = TOKEN_ADVANTAGES.get("clipv")(certain, mu=0.0, max_frac=most / 800)
    assert found.mask_BT is not None
    assert certain.discriminator_BT is not None
    bad = sorted(certain.discriminator_BT[1:].ravel())
    left_out = certain.discriminator_BT[~found.mask_BT]
    assert sorted(left_out) == bad[-most:]


def test_clipv_keeps_a_token_that_is_its_border() -> None:
    """Excesses of +-1 have the deviation 1."""
    batch = scored([1.0, 0.0], [4] * 2)
    zeros_BT = np.zeros(batch.mask_BT.shape)
    excess_BT = np.tile([1.0, -1.0], (2, 2))
    even = replace(batch, logprobs_BT=zeros_BT, entropies_BT=zeros_BT, discriminator_BT=excess_BT)
    assert figures("clipv", even, mu=1.0, max_frac=1.0)["frac_clipped"] == 0.0
    assert figures("clipv", even, mu=0.99, max_frac=1.0)["frac_clipped"] == 0.25


def test_a_share_of_more_than_all_is_no_mixture() -> None:
    with pytest.raises(UserError, match=r"lambda_coef is 1\.5; give one from 0 to 1"):
        figures("jsd", random_batch(0), lambda_coef=1.5)
