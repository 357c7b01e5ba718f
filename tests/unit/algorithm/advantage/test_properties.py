"""What holds for all samples: numbers that are finite, groups that do not see each other."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithm.advantage.builders import (
    compute,
    groups_permuted,
    many_samples,
    random_samples,
)
from tests.unit.subtests import as_subtests
from trinity.algorithm.advantage import ADVANTAGE_PATHS, ADVANTAGES
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Samples

VARIANTS: list[tuple[str, dict[str, object]]] = [
    *((name, {}) for name in ADVANTAGE_PATHS),
    ("grpo", {"std_cal_level": "batch", "rank_penalty": 0.3}),
    ("grpo", {"std_threshold": 0.2, "duplicate_experiences": True}),
    ("dr_grpo", {"std_threshold": 0.2}),
    ("step_wise_grpo", {"std_cal_level": "batch", "enable_step_norm": True}),
    ("opmd", {"opmd_baseline": "logavgexp", "tau": 0.01}),
    ("rec", {"drop": "balance", "std_normalize": True}),
    ("gigpo", {"fnorm": "std", "gamma": 0.5}),
]
ALONE = [
    (name, arguments)
    for name, arguments in VARIANTS
    if not needs_of(ADVANTAGES.get(name), arguments).whole_step  # type: ignore[arg-type]
]
UNMOVED_BY_A_SHIFT = ["grpo", "step_wise_grpo", "dr_grpo", "opmd", "asymre", "rec", "grpo_passk"]
GROWING_WITH_THE_SCALE = ["dr_grpo", "opmd", "rec", "reinforce"]
every_variant = pytest.mark.parametrize(("name", "arguments"), VARIANTS)


@every_variant
@given(samples=many_samples())
@settings(max_examples=25)
def test_whatever_comes_the_numbers_are_finite(
    name: str, arguments: dict[str, object], samples: Samples
) -> None:
    advantages = compute(name, samples, **arguments)
    assert advantages.values.shape == samples.rewards.shape
    assert np.isfinite(advantages.values).all()
    for figure in advantages.metrics.values():
        assert figure.shape == (samples.num_groups,) and np.isfinite(figure).all()


@as_subtests(("name", "arguments"), VARIANTS)
@as_subtests("reward", [0.0, 0.1, -3.7, 1e6])
def test_equal_rewards_give_finite_numbers_and_groups_of_several_no_preference(
    name: str, arguments: dict[str, object], reward: float
) -> None:
    samples = Samples.of_groups([reward] * 7, [reward] * 3, [reward])
    values = compute(name, samples, **arguments).values
    assert np.isfinite(values).all()
    assert np.ptp(values[:7]) == 0.0
    if name not in ("reinforce", "asymre") and "rank_penalty" not in arguments:
        assert values[:10] == pytest.approx(0.0)


@as_subtests(("name", "arguments"), VARIANTS)
def test_a_group_of_one_and_no_sample_at_all_are_fine(
    name: str, arguments: dict[str, object]
) -> None:
    assert np.isfinite(compute(name, Samples.of_groups([2.0]), **arguments).values).all()
    assert compute(name, Samples.of_groups(), **arguments).values.shape == (0,)


@pytest.mark.parametrize(("name", "arguments"), ALONE)
@given(samples=many_samples())
@settings(max_examples=25)
def test_a_group_gets_the_same_alone_as_among_others(
    name: str, arguments: dict[str, object], samples: Samples
) -> None:
    together = compute(name, samples, **arguments)
    for group in range(samples.num_groups):
        own = samples.groups == group
        alone = compute(
            name, replace(samples.chosen(own), groups=np.zeros(own.sum(), np.int64)), **arguments
        )
        assert (alone.values == together.values[own]).all()
        for figure, values in alone.metrics.items():
            assert values[0] == together.metrics[figure][group]


@every_variant
@given(samples=many_samples(), random=st.randoms(use_true_random=False))
@settings(max_examples=25)
def test_the_order_of_groups_does_not_matter(
    name: str, arguments: dict[str, object], samples: Samples, random: Random
) -> None:
    numbers = list(range(samples.num_groups))
    random.shuffle(numbers)
    permuted, order = groups_permuted(samples, np.array(numbers, dtype=np.int64))
    expected = compute(name, samples, **arguments).values[order]
    np.testing.assert_allclose(
        compute(name, permuted, **arguments).values, expected, rtol=1e-9, atol=1e-9
    )


@as_subtests("name", UNMOVED_BY_A_SHIFT)
@as_subtests("shift", [-5.0, 0.5, 1000.0])
def test_a_constant_on_all_rewards_changes_nothing_where_there_is_something_to_compare(
    name: str, shift: float
) -> None:
    samples = random_samples(2, max_steps=1)
    has_others = samples.group_sizes[samples.groups] > 1
    moved = replace(samples, rewards=samples.rewards + shift)
    np.testing.assert_allclose(
        compute(name, moved).values[has_others],
        compute(name, samples).values[has_others],
        rtol=1e-9,
        atol=1e-9,
    )


@as_subtests("name", GROWING_WITH_THE_SCALE)
@as_subtests("scale", [0.01, 3.0])
def test_advantages_grow_with_rewards_where_no_deviation_takes_the_scale_out(
    name: str, scale: float
) -> None:
    samples = random_samples(2)
    scaled = replace(samples, rewards=samples.rewards * scale)
    np.testing.assert_allclose(
        compute(name, scaled).values, compute(name, samples).values * scale, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("scale", [0.01, 3.0])
def test_a_deviation_takes_the_scale_out(scale: float) -> None:
    samples = random_samples(2)
    has_others = samples.group_sizes[samples.groups] > 1
    scaled = replace(samples, rewards=samples.rewards * scale)
    np.testing.assert_allclose(
        compute("grpo", scaled, epsilon=0.0, std_cal_level="batch").values[has_others],
        compute("grpo", samples, epsilon=0.0, std_cal_level="batch").values[has_others],
        rtol=1e-9,
    )
