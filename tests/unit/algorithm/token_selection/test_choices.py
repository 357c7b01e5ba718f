"""Which tokens are chosen depends on the tokens of the batch and on nothing else."""

import math
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithm.policy_loss.batches import AGES, Age
from tests.unit.algorithm.token_selection.batches import random_choice_batch
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.algorithm.token_selection.m2po import UNBOUNDED
from trinity.algorithm.token_selection.selection_batch import SelectionBatch

NAMES = TOKEN_SELECTIONS.names()
SHARE = 0.1
ARGUMENTS: dict[str, dict[str, float]] = {
    "clip_cov": {"clip_cov_ratio": SHARE, "clip_cov_lb": 0.05},
    "kl_cov": {"kl_cov_ratio": SHARE},
    "kto": {},
    "m2po": {"m2_threshold": 0.1},
}
few = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def chosen(name: str, batch: SelectionBatch) -> np.ndarray:
    found: np.ndarray = TOKEN_SELECTIONS.get(name)(batch, **ARGUMENTS[name])
    return found


def changed(batch: SelectionBatch, change: Callable[[np.ndarray], np.ndarray]) -> SelectionBatch:
    return SelectionBatch(
        **{field.name: change(getattr(batch, field.name)) for field in fields(batch)}
    )


def test_every_choice_is_a_policy_losss() -> None:
    assert set(NAMES) <= set(POLICY_LOSSES.names())


@pytest.mark.parametrize("name", NAMES)
@few
@given(seed=seeds, age=st.sampled_from(AGES))
def test_order_of_pairs_changes_nothing(name: str, seed: int, age: Age) -> None:
    batch = random_choice_batch(seed, age)
    pairs = np.arange(len(batch.mask_BT)).reshape(-1, 2)
    order = np.random.default_rng(seed).permutation(pairs).ravel()
    mixed = changed(batch, lambda array: array[order])
    assert np.allclose(chosen(name, mixed), chosen(name, batch)[order], rtol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@few
@given(seed=seeds, num_more=st.integers(0, 9))
def test_padding_and_what_stands_in_it_change_nothing(name: str, seed: int, num_more: int) -> None:
    batch = random_choice_batch(seed)

    def spoilt(array: np.ndarray) -> np.ndarray:
        if array.dtype == np.bool_:
            return np.pad(array, ((0, 0), (0, num_more)))
        with_rubbish = np.where(batch.mask_BT, array, np.nan)
        return np.pad(with_rubbish, ((0, 0), (0, num_more)), constant_values=np.nan)

    long = chosen(name, changed(batch, spoilt))
    assert np.allclose(long[:, : batch.mask_BT.shape[1]], chosen(name, batch), rtol=1e-12)
    assert not long[:, batch.mask_BT.shape[1] :].any()


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@few
@given(seed=seeds, age=st.sampled_from(AGES))
def test_no_more_than_the_share_is_chosen_and_only_of_the_mask(
    name: str, seed: int, age: Age
) -> None:
    batch = random_choice_batch(seed, age)
    found = chosen(name, batch)
    most = max(int(SHARE * batch.mask_BT.sum()), 1)
    assert not (found & ~batch.mask_BT).any()
    assert found.sum() <= most
    if name == "kl_cov":
        assert found.sum() == most


@few
@given(seed=seeds)
def test_kl_cov_takes_the_largest_covariances(seed: int) -> None:
    batch = random_choice_batch(seed)
    found = chosen("kl_cov", batch)
    covariances_BT = np.full(found.shape, -np.inf)
    covariances_BT[batch.mask_BT] = batch.covariances()
    assert covariances_BT[found].min() >= covariances_BT[batch.mask_BT & ~found].max()


@few
@given(seed=seeds)
def test_clip_cov_takes_the_smallest_lots_of_those_between_its_bounds(seed: int) -> None:
    batch = random_choice_batch(seed, "fresh")
    found = chosen("clip_cov", batch)
    all_possible: np.ndarray = TOKEN_SELECTIONS.get("clip_cov")(
        batch, clip_cov_ratio=1.0, clip_cov_lb=0.05
    )
    covariances_BT = np.zeros(found.shape)
    covariances_BT[batch.mask_BT] = batch.covariances()
    assert ((covariances_BT[all_possible] > 0.05) & (covariances_BT[all_possible] < 5.0)).all()
    assert not (found & ~all_possible).any()
    left = all_possible & ~found
    if found.any() and left.any():
        assert batch.lots_BT[found].max() < batch.lots_BT[left].min()


def test_clip_cov_leaves_tokens_alone_that_ppo_clips_already() -> None:
    batch = random_choice_batch(2, "stale")
    possible = TOKEN_SELECTIONS.get("clip_cov")(batch, clip_cov_ratio=1.0, clip_cov_lb=0.0)
    wide = {"clip_range_low": 1.0, "clip_range_high": 1e9}
    unclipped = TOKEN_SELECTIONS.get("clip_cov")(batch, clip_cov_ratio=1.0, clip_cov_lb=0.0, **wide)
    ratios_BT = np.exp(batch.logprobs_BT - batch.old_logprobs_BT)
    clipped_BT = np.where(batch.advantages_BT > 0, ratios_BT > 1.2, ratios_BT < 0.8)
    assert (unclipped & clipped_BT).any()
    assert np.array_equal(possible, unclipped & ~clipped_BT)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_chosen_of_nothing(name: str) -> None:
    batch = random_choice_batch(1)
    assert not chosen(name, replace(batch, mask_BT=np.zeros_like(batch.mask_BT))).any()
    assert chosen(name, changed(batch, lambda array: array[:0])).shape == (0, 17)


@few
@given(seed=seeds, age=st.sampled_from(AGES), threshold=st.sampled_from([1e-3, 0.04, 0.5, 3.0]))
def test_m2po_allows_the_largest_ratio_that_keeps_the_moment_within_its_threshold(
    seed: int, age: Age, threshold: float
) -> None:
    batch = random_choice_batch(seed, age)
    found_BT = TOKEN_SELECTIONS.get("m2po")(batch, m2_threshold=threshold)
    sizes = [
        abs(logprob - old)
        for logprob, old, advantage, counts in zip(
            *(matrix.ravel().tolist() for matrix in (batch.logprobs_BT, batch.old_logprobs_BT)),
            batch.advantages_BT.ravel().tolist(),
            batch.mask_BT.ravel().tolist(),
            strict=True,
        )
        if counts and ((advantage > 0 and logprob > old) or (advantage < 0 and logprob < old))
    ]

    def moment(most: float) -> float:
        return math.fsum(min(size, most) ** 2 for size in sizes) / len(sizes)

    expected = UNBOUNDED
    if sizes and moment(math.inf) > threshold:
        within = [size for size in sizes if moment(size) <= threshold]
        expected = max(within, default=0.0)
    assert np.allclose(found_BT[batch.mask_BT], expected, rtol=1e-12)


def test_m2po_leaves_tokens_out_of_account_that_come_back_to_the_old_policy() -> None:
    batch = random_choice_batch(3)
    back = replace(batch, advantages_BT=batch.old_logprobs_BT - batch.logprobs_BT)
    assert (TOKEN_SELECTIONS.get("m2po")(back)[batch.mask_BT] == UNBOUNDED).all()


def test_m2po_bounds_nothing_on_policy() -> None:
    batch = random_choice_batch(0)
    same = replace(batch, old_logprobs_BT=batch.logprobs_BT)
    assert (TOKEN_SELECTIONS.get("m2po")(same)[batch.mask_BT] == UNBOUNDED).all()
