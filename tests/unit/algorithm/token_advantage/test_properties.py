"""What holds for every token advantage there is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithm.token_advantage.batches import (
    arrays_of,
    assert_close,
    of_rows,
    padded,
    random_batch,
    with_outcome_rewards,
    with_rubbish_outside,
)
from tests.unit.subtests import as_subtests
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch

NAMES = sorted(TOKEN_ADVANTAGES.builtins)
READS_TOOL_TOKENS = {"ppo_unmasked"}
seeds = st.integers(0, 2**32 - 1)
names = st.sampled_from(NAMES)


def run(name: str, batch: TokenBatch) -> TokenAdvantages:
    return TOKEN_ADVANTAGES.get(name)(batch)


def all_arrays(result: TokenAdvantages) -> list[np.ndarray]:
    given = (result.advantages_BT, result.returns_BT, result.mask_BT)
    return [array for array in given if array is not None]


@settings(max_examples=150)
@given(name=names, seed=seeds, num_more=st.integers(0, 40))
def test_padding_changes_nothing(name: str, seed: int, num_more: int) -> None:
    batch = random_batch(seed, empty_rows=True)
    width = batch.mask_BT.shape[1]
    short, long = run(name, batch), run(name, padded(batch, num_more))
    for before, after in zip(all_arrays(short), all_arrays(long), strict=True):
        assert_close(after[:, :width], before)
        assert not after[:, width:].any()
    assert dict(long.metrics) == pytest.approx(dict(short.metrics), abs=1e-9)


@settings(max_examples=150)
@given(name=names, seed=seeds)
def test_rows_may_come_in_any_order(name: str, seed: int) -> None:
    batch = random_batch(seed, empty_rows=True)
    order = np.random.default_rng(seed).permutation(len(batch.groups_B))
    straight, mixed = run(name, batch), run(name, of_rows(batch, order))
    for before, after in zip(all_arrays(straight), all_arrays(mixed), strict=True):
        assert_close(after, before[order])
    assert dict(mixed.metrics) == pytest.approx(dict(straight.metrics), abs=1e-9)


@settings(max_examples=100)
@given(name=names, seed=seeds)
def test_what_stands_outside_the_mask_plays_no_part(name: str, seed: int) -> None:
    batch = random_batch(seed, gaps=name not in READS_TOOL_TOKENS, empty_rows=True)
    clean, spoilt = run(name, batch), run(name, with_rubbish_outside(batch))
    for before, after in zip(all_arrays(clean), all_arrays(spoilt), strict=True):
        assert_close(after, before)


@settings(max_examples=100)
@given(name=names, seed=seeds)
def test_tokens_that_are_not_trained_on_get_zero(name: str, seed: int) -> None:
    batch = random_batch(seed, empty_rows=True)
    result = run(name, batch)
    mask_BT = batch.mask_BT if result.mask_BT is None else result.mask_BT
    assert not result.advantages_BT[~mask_BT].any()
    assert not (mask_BT & ~batch.mask_BT).any()
    if result.returns_BT is not None:
        assert not result.returns_BT[~batch.mask_BT].any()


@settings(max_examples=60)
@given(name=names, seed=seeds)
def test_a_batch_is_left_as_it_was(name: str, seed: int) -> None:
    batch = random_batch(seed)
    before = {key: array.copy() for key, array in arrays_of(batch).items()}
    run(name, batch)
    for key, array in arrays_of(batch).items():
        np.testing.assert_array_equal(array, before[key])


def without_places(batch: TokenBatch) -> TokenBatch:
    """Rows without a single token."""
    cut = {name: array[:, :0] for name, array in arrays_of(batch).items() if array.ndim == 2}
    return replace(batch, **cut)  # type: ignore[arg-type]  # names that come from its fields


def extremes() -> dict[str, TokenBatch]:
    batch = with_outcome_rewards(random_batch(1, empty_rows=True))
    num_rows = len(batch.groups_B)
    nothing = np.zeros_like(batch.mask_BT)
    one = nothing.copy()
    one[3, 0] = True
    return {
        "groups of one": replace(batch, groups_B=np.arange(num_rows)),
        "one group": replace(batch, groups_B=np.zeros(num_rows, np.int64)),
        "all equal": replace(batch, rewards_BT=np.where(batch.mask_BT, 0.1, 0.0)),
        "no reward": replace(batch, rewards_BT=np.zeros(batch.mask_BT.shape)),
        "no token": replace(batch, mask_BT=nothing),
        "one token": replace(batch, mask_BT=one),
        "no row": of_rows(batch, np.arange(0)),
        "no place": without_places(of_rows(batch, np.arange(2))),
        "policies far apart": random_batch(1, largest_gap=20.0),
        "policies further apart": random_batch(1, largest_gap=5000.0),
        "huge rewards": replace(batch, rewards_BT=1e12 * batch.rewards_BT),
    }


@as_subtests("name", NAMES)
@as_subtests("case", extremes())
def test_extremes_give_finite_numbers(name: str, case: str) -> None:
    batch = extremes()[case]
    result = run(name, batch)
    assert result.advantages_BT.shape == batch.mask_BT.shape
    for array in all_arrays(result):
        assert np.isfinite(array).all()
    assert all(np.isfinite(value) for value in result.metrics.values())


@pytest.mark.parametrize("name", ["grpo_verl", "rloo", "opmd_verl", "opo", "gpg", "clipb"])
def test_groups_whose_rows_did_equally_well_teach_nothing(name: str) -> None:
    batch = with_outcome_rewards(random_batch(4))
    groups_B = np.arange(len(batch.groups_B)) // 2
    first = batch.mask_BT.argmax(-1)
    rewards_BT = np.zeros(batch.mask_BT.shape)
    rewards_BT[np.arange(len(first)), first] = 0.1 * groups_B
    advantages_BT = run(
        name, replace(batch, groups_B=groups_B, rewards_BT=rewards_BT)
    ).advantages_BT
    assert np.abs(advantages_BT).max() < 1e-9
