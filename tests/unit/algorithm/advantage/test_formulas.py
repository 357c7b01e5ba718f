"""Every group advantage is its formula, as plain loops compute it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from tests.support.oracle import groups as references
from tests.unit.algorithm.advantage.builders import compute, random_samples, samples_at
from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage import ADVANTAGE_PATHS
from trinity.algorithm.advantage.groups import draw_copies
from trinity.algorithm.advantage.samples import FloatVector, Samples
from trinity.algorithm.units import COUNTS_UNITS, UNITS, Unit
from trinity.errors import UserError

SEEDS = range(5)
FORMULAS: list[tuple[str, dict[str, object], Callable[..., FloatVector]]] = [
    ("grpo", {}, references.grpo),
    ("grpo", {"epsilon": 0.1, "std_cal_level": "batch"}, references.grpo),
    ("grpo", {"rank_penalty": 0.4}, references.grpo),
    ("grpo", {"rank_penalty": 0.4, "std_cal_level": "batch"}, references.grpo),
    ("step_wise_grpo", {}, references.step_wise_grpo),
    ("step_wise_grpo", {"enable_step_norm": True}, references.step_wise_grpo),
    ("step_wise_grpo", {"std_cal_level": "batch", "epsilon": 0.1}, references.step_wise_grpo),
    ("step_wise_grpo", {"std_cal_level": "none"}, references.step_wise_grpo),
    ("dr_grpo", {}, references.dr_grpo),
    ("opmd", {}, references.opmd),
    ("opmd", {"opmd_baseline": "logavgexp", "tau": 0.3}, references.opmd),
    ("asymre", {}, references.asymre),
    ("asymre", {"baseline_shift": 0.25}, references.asymre),
    ("rec", {}, references.rec),
    ("rec", {"std_normalize": True, "epsilon": 0.01}, references.rec),
    ("grpo_passk", {}, references.grpo_passk),
    ("maxrl", {}, references.maxrl),
    ("gigpo", {}, references.gigpo),
    ("gigpo", {"omega": 0.5, "gamma": 0.9}, references.gigpo),
    ("gigpo", {"fnorm": "std", "gamma": 0.9}, references.gigpo),
    ("gigpo", {"fnorm": "std", "gamma": 0.9, "anchors": "all"}, references.gigpo),
]


@as_subtests("seed", SEEDS)
@as_subtests("unit", UNITS)
@as_subtests(("name", "arguments", "reference"), FORMULAS)
def test_a_function_is_its_formula(
    name: str,
    arguments: dict[str, object],
    reference: Callable[..., FloatVector],
    unit: Unit,
    seed: int,
) -> None:
    samples = random_samples(seed)
    formula = partial(reference, **arguments)
    if name in COUNTS_UNITS:
        arguments = {**arguments, "unit": unit}
    by_run = unit == "run" and name in COUNTS_UNITS
    expected = references.by_run(samples, formula) if by_run else formula(samples)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(
        compute(name, samples, **arguments).values, expected, rtol=1e-9, atol=1e-9
    )


def test_every_function_has_a_formula_or_needs_none() -> None:
    assert ADVANTAGE_PATHS.keys() == {name for name, _, _ in FORMULAS} | {
        "none",
        "reinforce",
        "reward_filter",
    }


def test_passk_without_deviation_is_the_bare_lead() -> None:
    samples = random_samples(3)
    expected = references.grpo_passk(samples, norm=False)
    found = compute("grpo_passk", samples, norm_adv_by_std_in_grpo=False, unit="sample").values
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_maxrls_expected_weight_is_the_likelihoods_gradient() -> None:
    """Of a task solved with probability p, one right answer's weight grows like 1 / p."""
    rng, size, p = np.random.default_rng(0), 8, 0.3
    groups = [(rng.random(size) < p).astype(float).tolist() for _ in range(20_000)]
    samples = Samples.of_groups(*groups)
    values = compute("maxrl", samples).values
    per_answer = float((values * samples.rewards).sum()) / len(samples.rewards)
    # The truncation at `size` samples: log p is missed by the tail of its series.
    expected = (1 - p) * (1 - (1 - p) ** (size - 1))
    assert per_answer == pytest.approx(expected, rel=0.02)


def test_maxrl_leaves_out_groups_with_a_negative_reward_and_says_so() -> None:
    samples = Samples.of_groups([1.0, 0.0], [-1.0, 1.0], [1.0, 1.0])
    advantages = compute("maxrl", samples)
    assert advantages.left_out is not None
    assert advantages.left_out.tolist() == [False, False, True, True, False, False]
    assert "negative reward" in advantages.reason
    both = compute("maxrl", samples, std_threshold=0.0)
    assert both.left_out is not None and both.left_out.tolist() == [False, False] + [True] * 4
    assert "standard deviation" in both.reason and "negative reward" in both.reason
    assert compute("maxrl", Samples.of_groups([1.0, 0.0])).left_out is None


def test_maxrl_prefers_the_task_that_is_solved_rarely() -> None:
    samples = Samples.of_groups([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0])
    values = compute("maxrl", samples).values
    assert values[0] == pytest.approx(3.0)
    assert values[4] == pytest.approx(1 / 3)


def test_reinforce_is_the_reward_and_none_is_nothing() -> None:
    samples = random_samples(0)
    assert (compute("reinforce", samples).values == samples.rewards).all()
    assert (compute("none", samples).values == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_balance_drops_the_surplus_of_bad_samples_by_lot(seed: int) -> None:
    samples = random_samples(seed)
    advantages = compute("rec", samples, drop="balance", std_normalize=True, unit="sample")
    some_dropped = False
    for number, group in enumerate(references.groups_of(samples)):
        rewards = samples.rewards[group]
        middle = references.mean(rewards.tolist())
        bad = [i for i in group if samples.rewards[i] < middle]
        good = [i for i in group if i not in bad]
        by_lot = sorted(bad, key=lambda i: samples.lots[i])
        dropped = by_lot[len(good) :]
        some_dropped |= bool(dropped)
        kept = [i for i in group if i not in dropped]
        own = [float(samples.rewards[i]) for i in kept]
        alone = len(kept) == 1
        mean = 0.0 if alone else references.mean(own)
        spread = 1.0 if alone else references.deviation(own, ddof=0)
        expected = [
            0.0 if i in dropped else (samples.rewards[i] - mean) / (spread + 1e-6) for i in group
        ]
        np.testing.assert_allclose(advantages.values[group], expected, rtol=1e-9, atol=1e-9)
        share = advantages.metrics["group_advantages/drop_balance"][number]
        assert share == pytest.approx(len(dropped) / len(group))
    assert some_dropped


@as_subtests("name", sorted(ADVANTAGE_PATHS.keys() - {"none", "reward_filter"}))
def test_groups_without_enough_spread_are_left_out_with_a_reason(name: str) -> None:
    samples = Samples.of_groups([0.1, 0.1, 0.1], [0.0, 1.0], [0.5], [0.4, 0.5])
    advantages = compute(name, samples, std_threshold=0.0)
    assert advantages.left_out is not None
    assert advantages.left_out.tolist() == [True] * 3 + [False] * 2 + [True] + [False] * 2
    assert "standard deviation of at most 0" in advantages.reason
    assert advantages.copies_of is None
    assert (advantages.values == compute(name, samples).values).all()
    wider = compute(name, samples, std_threshold=0.08).left_out
    assert wider is not None and wider[-2:].tolist() == [True, True]


def test_copies_stand_in_for_whole_groups_and_are_of_one_other_group() -> None:
    samples = random_samples(1, num_groups=40, max_runs=4, max_steps=1)
    advantages = compute("grpo", samples, std_threshold=0.3, duplicate_experiences=True)
    left_out, copies = advantages.left_out, advantages.copies_of
    assert left_out is not None and copies is not None
    assert (copies[~left_out] == -1).all() and (copies[left_out] >= 0).all()
    assert not left_out[copies[left_out]].any()
    donors = set()
    for group in references.groups_of(samples):
        if left_out[group[0]]:
            [donor] = set(samples.groups[copies[group]].tolist())
            donors.add(donor)
            size = int((samples.groups == donor).sum())
            assert len(set(copies[group].tolist())) == min(size, len(group))
    assert len(donors) > 3


def test_there_are_no_copies_when_every_group_is_left_out() -> None:
    samples = Samples.of_groups([1.0, 1.0], [0.0, 0.0])
    advantages = compute("grpo", samples, std_threshold=0.5, duplicate_experiences=True)
    assert advantages.copies_of is not None and (advantages.copies_of == -1).all()


def test_a_group_of_one_at_the_end_is_copied_by_its_own_lot() -> None:
    samples = Samples.of_groups([1.0, 0.0], [3.0, 0.0], [5.0])
    object.__setattr__(samples, "lots", np.array([0.0, 0.0, 0.1, 0.1, 0.9]))
    copies = draw_copies(samples, np.array([False, False, False, False, True]))
    assert copies.tolist() == [-1, -1, -1, -1, 2]


def test_a_group_without_samples_is_copied_by_none() -> None:
    samples = Samples.of_groups([1.0, 0.0], [], [5.0])
    assert samples.group_sizes.tolist() == [2, 0, 1]
    object.__setattr__(samples, "lots", np.array([0.9, 0.9, 0.9]))
    assert draw_copies(samples, np.array([False, False, True])).tolist() == [-1, -1, 0]


def test_gigpo_reports_the_size_of_both_parts() -> None:
    samples = random_samples(3, num_groups=6, max_runs=4, max_steps=3)
    both, of_runs = (compute("gigpo", samples, omega=omega) for omega in (1.0, 0.0))
    for name, values in (("A_E", of_runs.values), ("A_S", both.values - of_runs.values)):
        expected = samples.group_means(np.abs(values))
        np.testing.assert_allclose(both.metrics[f"gigpo/mean_abs_{name}"], expected, atol=1e-12)


def test_a_step_of_an_unknown_state_is_compared_with_none() -> None:
    samples = samples_at([(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)], seed=5)
    object.__setattr__(samples, "states", np.array([-1, -1, 3, 3]))
    with_states = compute("gigpo", samples, omega=1.0).values
    without = compute("gigpo", samples, omega=0.0).values
    assert (with_states[:2] == without[:2]).all()
    assert with_states[2] != without[2]


def test_a_state_of_two_tasks_is_compared_within_each_as_the_authors_do() -> None:
    """Their program gives 0 to a state that one step of a task has seen."""
    samples = replace(Samples.of_groups([1.0], [0.0]), states=np.array([7, 7]))
    for anchors, expected in (("group", [0.0, 0.0]), ("all", [0.5, -0.5])):
        found = compute("gigpo", samples, anchors=anchors, epsilon=0.0).values
        single = found - compute("gigpo", samples, omega=0.0, epsilon=0.0).values
        np.testing.assert_allclose(single, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("grpo", {"std_cal_level": "task"}, "std_cal_level of advantage function grpo is 'task'"),
        ("step_wise_grpo", {"std_cal_level": "task"}, "one of group, batch, none"),
        ("opmd", {"opmd_baseline": "median"}, "one of mean, logavgexp"),
        ("opmd", {"tau": 0.0}, "tau of advantage function opmd is 0.0"),
        ("rec", {"drop": "half"}, "drop of advantage function rec is 'half'"),
        ("gigpo", {"fnorm": "max"}, "one of none, std"),
        ("gigpo", {"anchors": "task"}, "one of group, all"),
    ],
)
def test_an_argument_that_cannot_be_is_named(
    name: str, arguments: dict[str, object], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        compute(name, random_samples(0), **arguments)
