"""A run counts once in its group's baseline, however many samples it gives."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.algorithm.token_advantage.batches import random_batch
from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage import ADVANTAGE_PATHS, ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.masked import broadcast_rows
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.units import COMPARES_NO_RUNS, COUNTS_UNITS
from trinity.errors import UserError

GROUP_CALLS: list[tuple[str, dict[str, object]]] = [
    ("grpo", {}),
    ("grpo", {"std_cal_level": "batch"}),
    ("grpo", {"std_threshold": 0.0}),
    ("grpo", {"std_threshold": 0.0, "duplicate_experiences": True}),
    ("grpo", {"rank_penalty": 0.5}),
    ("grpo_passk", {}),
    ("maxrl", {}),
    ("dr_grpo", {"std_threshold": 0.1}),
    ("opmd", {}),
    ("opmd", {"opmd_baseline": "logavgexp", "tau": 0.5}),
    ("asymre", {}),
    ("rec", {"std_normalize": True}),
    ("rec", {"drop": "balance"}),
    ("reward_filter", {}),
    ("reward_filter", {"threshold": 0.4}),
]
TOKEN_CALLS: list[tuple[str, dict[str, object]]] = [
    ("rloo", {}),
    ("grpo_verl", {}),
    ("grpo_verl", {"norm_adv_by_std_in_grpo": False}),
    ("opmd_verl", {}),
    ("opmd_verl", {"opmd_baseline": "logavgexp"}),
    ("asymre_verl", {}),
    ("gpg", {"f_norm": 2.0}),
    ("opo", {}),
    ("clipb", {"mu": 1e9}),
    ("clipv", {"mu": 1e9}),
]
"""`gdpo` and `reinforce_plus_plus_baseline` whiten over all tokens: a test of their own."""
RUNS = [[1.0, 0.0, 0.25], [0.0, 0.0], [0.1, 0.7, 0.7, 0.1], [0.3]]
"""Rewards of the runs of four groups."""
SPLITS = [3, 1, 2, 1, 4, 1, 1, 5, 2, 2]
"""How many samples each of the ten runs gives."""


def split(samples: Samples, sizes: Sequence[int]) -> Samples:
    """Each run as so many samples of its reward."""
    which = np.repeat(np.arange(len(sizes)), sizes)
    parts = samples.chosen(which)
    steps = np.concatenate([np.arange(size) for size in sizes])
    fields = {name: getattr(parts, name) for name in ("rewards", "groups", "runs", "states")}
    return Samples(
        **fields,
        steps=steps,
        lots=parts.lots,
        mean_logprobs=parts.mean_logprobs,
        step_rewards=parts.step_rewards,
    )


def whole() -> Samples:
    samples = Samples.of_groups(*RUNS)
    logprobs = -np.arange(len(samples.rewards), dtype=float)
    return Samples(
        **{name: getattr(samples, name) for name in ("rewards", "groups", "runs", "steps")},
        lots=samples.lots,
        mean_logprobs=logprobs,
        step_rewards=samples.step_rewards,
        states=samples.states,
    )


def found(name: str, samples: Samples, **arguments: object) -> Advantages:
    advantages: Advantages = ADVANTAGES.get(name)(samples, **arguments)
    return advantages


@as_subtests(("name", "arguments"), GROUP_CALLS)
def test_a_run_that_splits_has_the_advantage_it_had_whole(
    name: str, arguments: dict[str, object]
) -> None:
    before = found(name, whole(), **arguments)
    after = found(name, split(whole(), SPLITS), **arguments)
    which = np.repeat(np.arange(10), SPLITS)
    assert np.array_equal(after.values, before.values[which])
    if before.left_out is not None and after.left_out is not None:
        assert np.array_equal(after.left_out, before.left_out[which])
    for metric, values in before.metrics.items():
        assert np.array_equal(after.metrics[metric], values), metric


@as_subtests(("name", "arguments"), GROUP_CALLS)
def test_runs_of_one_sample_are_the_same_in_both_units(
    name: str, arguments: dict[str, object]
) -> None:
    by_run = found(name, whole(), unit="run", **arguments)
    by_sample = found(name, whole(), unit="sample", **arguments)
    assert np.array_equal(by_run.values, by_sample.values)


def test_a_run_of_three_samples_weighs_one_third_of_what_its_samples_weigh() -> None:
    samples = split(Samples.of_groups([1.0, 0.0]), [3, 1])
    assert found("dr_grpo", samples).values.tolist() == [0.5, 0.5, 0.5, -0.5]
    assert found("dr_grpo", samples, unit="sample").values.tolist() == [0.25, 0.25, 0.25, -0.75]


def test_a_run_whose_samples_differ_has_their_mean() -> None:
    samples = Samples(
        **{
            name: getattr(split(Samples.of_groups([0.0, 0.0]), [2, 1]), name)
            for name in ("groups", "runs", "steps", "lots", "states")
        },
        rewards=np.array([1.0, 0.0, 0.25]),
        mean_logprobs=np.zeros(3),
        step_rewards=np.full(3, np.nan),
    )
    assert found("dr_grpo", samples).values.tolist() == [0.125, 0.125, -0.125]


def test_a_group_of_one_run_is_left_out_whole_and_copied_sample_by_sample() -> None:
    samples = split(Samples.of_groups([1.0], [0.0, 1.0]), [4, 2, 2])
    made = found("grpo", samples, std_threshold=0.0, duplicate_experiences=True)
    assert made.left_out is not None and made.copies_of is not None
    assert made.left_out.tolist() == [True] * 4 + [False] * 4
    copies = made.copies_of[:4].tolist()
    assert set(copies) <= {4, 5} or set(copies) <= {6, 7}
    assert copies[:2] == copies[2:] and copies[0] + 1 == copies[1]
    assert (made.copies_of[4:] == -1).all()


@as_subtests("name", sorted(COUNTS_UNITS & ADVANTAGE_PATHS.keys()))
def test_another_unit_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="give `run`"):
        found(name, whole(), unit="token")


def test_the_advantages_that_count_units_are_those_with_the_argument() -> None:
    functions: dict[str, Callable[..., object]] = {n: ADVANTAGES.get(n) for n in ADVANTAGE_PATHS}
    functions |= {name: TOKEN_ADVANTAGES.get(name) for name in TOKEN_ADVANTAGES.builtins}
    with_unit = {name for name, f in functions.items() if "unit" in inspect.signature(f).parameters}
    assert with_unit == COUNTS_UNITS


def test_what_compares_no_runs_gives_the_same_in_any_groups() -> None:
    batch = random_batch(3)
    apart = replace(batch, groups_B=np.arange(len(batch.groups_B)))
    for name in COMPARES_NO_RUNS & TOKEN_ADVANTAGES.builtins.keys():
        whole_batch, alone = (TOKEN_ADVANTAGES.get(name)(made) for made in (batch, apart))
        assert np.array_equal(whole_batch.advantages_BT, alone.advantages_BT), name
    samples = Samples.of_groups([1.0, 0.0], [0.5])
    for name in COMPARES_NO_RUNS & ADVANTAGE_PATHS.keys():
        together = found(name, samples).values
        assert (
            together.tolist() == found(name, Samples.of_groups([1.0], [0.0], [0.5])).values.tolist()
        )
    assert COUNTS_UNITS.isdisjoint(COMPARES_NO_RUNS)


def batch_of(sizes: Sequence[int], *, runs: bool = True) -> TokenBatch:
    """Rows of two tokens, each with half of its run's reward, so that sums are exact."""
    groups = np.repeat(np.arange(len(RUNS)), [len(group) for group in RUNS])
    rewards = np.array([reward for group in RUNS for reward in group])
    which = np.repeat(np.arange(len(sizes)), sizes)
    rows = len(which)
    return TokenBatch(
        rewards_BT=np.stack([rewards[which] / 2, rewards[which] / 2], axis=1),
        mask_BT=np.ones((rows, 2), dtype=np.bool_),
        lengths_B=np.full(rows, 2),
        groups_B=groups[which],
        runs_B=which if runs else None,
        logprobs_BT=np.full((rows, 2), -0.5),
        rollout_logprobs_BT=np.full((rows, 2), -0.5),
        entropies_BT=np.full((rows, 2), 0.3),
        discriminator_BT=np.full((rows, 2), 0.3),
        reward_parts={"right": rewards[which], "short": 1 - rewards[which]},
    )


def of_tokens(name: str, batch: TokenBatch, **arguments: object) -> FloatVector:
    made: TokenAdvantages = TOKEN_ADVANTAGES.get(name)(batch, **arguments)
    return made.advantages_BT[:, 0]


@as_subtests(("name", "arguments"), TOKEN_CALLS)
def test_a_run_that_splits_in_a_batch_has_the_advantage_it_had_whole(
    name: str, arguments: dict[str, object]
) -> None:
    sizes = [2] * 10 if name == "opo" else SPLITS  # `opo` weighs by length, which a split changes
    before = of_tokens(name, batch_of([1] * 10), **arguments)
    after = of_tokens(name, batch_of(sizes), **arguments)
    assert np.allclose(after, before[np.repeat(np.arange(10), sizes)], rtol=1e-13, atol=1e-13)


@as_subtests("name", [name for name, _ in TOKEN_CALLS])
def test_counting_samples_differs_where_a_run_splits_and_only_there(name: str) -> None:
    whole_rows = of_tokens(name, batch_of([1] * 10), unit="sample")
    assert np.array_equal(whole_rows, of_tokens(name, batch_of([1] * 10)))
    by_sample = of_tokens(name, batch_of(SPLITS), unit="sample")
    assert not np.allclose(by_sample, of_tokens(name, batch_of(SPLITS)))
    assert np.array_equal(by_sample, of_tokens(name, batch_of(SPLITS, runs=False)))


def test_the_samples_of_a_run_are_not_its_others() -> None:
    batch = batch_of(SPLITS)
    advantages = of_tokens("rloo", batch)
    assert np.allclose(advantages[:4], [1.0 - 0.125] * 3 + [0.0 - 0.625], rtol=1e-12)
    by_sample = of_tokens("rloo", batch, unit="sample")
    others_of_first = (1.0 + 1.0 + 0.0 + 0.25 * 2) / 5
    assert np.isclose(by_sample[0], 1.0 - others_of_first)


def test_whitened_advantages_compare_runs_before_they_whiten_tokens() -> None:
    batch = batch_of(SPLITS)
    for name in ("gdpo", "reinforce_plus_plus_baseline"):
        by_run, by_sample = (of_tokens(name, batch, unit=unit) for unit in ("run", "sample"))
        assert not np.allclose(by_run, by_sample)
        rows_BT = broadcast_rows(by_run, batch.mask_BT)
        assert abs(rows_BT.mean()) < 1e-9
        which = np.repeat(np.arange(10), SPLITS)
        first_of_run = np.cumsum(SPLITS) - SPLITS
        assert np.array_equal(by_run[first_of_run][which], by_run)
