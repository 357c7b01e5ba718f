"""What is trained on is compared with what was generated."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.buffer.domain.sample_statistics import (
    GeneratedSample,
    SamplePopulation,
    distribution_shifts,
    population_metrics,
)


def population(
    trained: list[tuple[int, float]], left_out: list[tuple[int, float]]
) -> SamplePopulation:
    """Samples by length and reward, each of a task of its own."""
    both = [(one, True) for one in trained] + [(one, False) for one in left_out]
    return SamplePopulation(
        first_step=1,
        last_step=2,
        runs_of={("train", number): 1 for number in range(len(both))},
        samples=[
            GeneratedSample(
                task=("train", number), response_length=length, reward=reward, num_uses=is_trained
            )
            for number, ((length, reward), is_trained) in enumerate(both)
        ],
    )


def test_nothing_is_shifted_where_everything_is_trained_on() -> None:
    found = {one.name: one for one in distribution_shifts(population([(5, 1.0), (9, 0.0)], []))}
    assert found.keys() == {"response_length", "reward", "task"}
    assert all(one.distance == 0 and not one.is_significant for one in found.values())
    assert found["response_length"].generated_mean == found["response_length"].trained_mean == 7


def test_leaving_out_the_long_ones_shifts_lengths_by_their_share() -> None:
    short, long = [(10, 0.5)] * 30, [(100, 0.5)] * 10
    lengths, rewards, tasks = distribution_shifts(population(short, long))
    assert lengths.distance == pytest.approx(0.25)
    assert lengths.is_significant
    assert (lengths.generated_mean, lengths.trained_mean) == (32.5, 10)
    assert rewards.distance == 0
    assert not rewards.is_significant
    assert tasks.distance == pytest.approx(0.25)


def test_leaving_out_regardless_of_length_is_not_called_a_shift() -> None:
    every = [(length, 0.0) for length in range(40)]
    lengths, *_ = distribution_shifts(population(every[::2], every[1::2]))
    assert not lengths.is_significant


def test_few_samples_prove_nothing() -> None:
    lengths, *_ = distribution_shifts(population([(1, 0.0)], [(100, 0.0)]))
    assert lengths.distance == 0.5
    assert not lengths.is_significant


def test_tasks_are_weighed_by_their_runs() -> None:
    """Half of the runs were of a task that gave nothing to train on."""
    samples = [GeneratedSample(task=("train", 0), response_length=1, reward=1.0, num_uses=1)] * 4
    found = SamplePopulation(
        first_step=1, last_step=1, runs_of={("train", 0): 4, ("train", 1): 4}, samples=samples
    )
    assert distribution_shifts(found)[-1].distance == 0.5


def runs_of_tasks(*is_trained: list[bool]) -> SamplePopulation:
    """A list for each task: whether each of its runs was trained on."""
    tasks = {("train", number): runs for number, runs in enumerate(is_trained)}
    return SamplePopulation(
        first_step=1,
        last_step=1,
        runs_of={task: len(runs) for task, runs in tasks.items()},
        samples=[
            GeneratedSample(task=task, response_length=1, reward=1.0, num_uses=one)
            for task, runs in tasks.items()
            for one in runs
        ],
    )


def test_leaving_out_whole_tasks_is_called_a_shift_of_tasks() -> None:
    found = runs_of_tasks(*[[True] * 8] * 12, *[[False] * 8] * 4)
    assert distribution_shifts(found)[-1].is_significant


def test_tasks_whose_runs_never_came_are_missed() -> None:
    """As after a resume that skips what it had begun."""
    found = runs_of_tasks(*[[True] * 8] * 12)
    lost = {("train", 100 + number): 8 for number in range(4)}
    shorter = replace(found, runs_of={**found.runs_of, **lost})
    assert distribution_shifts(shorter)[-1].is_significant


def test_losing_runs_of_all_tasks_by_chance_is_no_shift_of_tasks() -> None:
    flagged = 0
    for seed in range(200):
        drawn = np.random.default_rng(seed).random((16, 8)) < 0.75
        flagged += distribution_shifts(runs_of_tasks(*drawn.tolist()))[-1].is_significant
    assert flagged <= 4


@pytest.mark.parametrize("num_runs", [1, 8])
def test_few_tasks_or_one_run_of_each_prove_nothing(num_runs: int) -> None:
    few = runs_of_tasks([True] * num_runs, [False] * num_runs)
    assert not distribution_shifts(few)[-1].is_significant
    single = runs_of_tasks(*[[True]] * 30, *[[False]] * 10)
    assert not distribution_shifts(single)[-1].is_significant


def replayed(*num_uses: int) -> SamplePopulation:
    """As many samples, the n-th of length n, with reward n and of the n-th task."""
    found = population([(number, float(number)) for number in range(len(num_uses))], [])
    samples = [
        replace(one, num_uses=uses) for one, uses in zip(found.samples, num_uses, strict=True)
    ]
    return replace(found, samples=samples)


def test_a_sample_counts_as_often_as_it_was_trained_on() -> None:
    found = replayed(1, 1, 1, 5)
    assert found.num_trained == 4
    lengths, rewards, tasks = distribution_shifts(found)
    for one in (lengths, rewards):
        assert (one.generated_mean, one.trained_mean) == (1.5, 18 / 8)
        assert one.distance == 3 / 4 - 3 / 8
    assert tasks.distance == pytest.approx(5 / 8 - 1 / 4)


def test_training_everything_equally_often_shifts_nothing() -> None:
    found = distribution_shifts(replayed(*[3] * 40))
    assert all(one.distance == 0 and not one.is_significant for one in found)


def test_training_again_on_the_same_proves_nothing() -> None:
    """Two of four were left out, however often the others came."""
    once, often = (
        distribution_shifts(replayed(1, 1, 0, 0)),
        distribution_shifts(replayed(500, 500, 0, 0)),
    )
    assert often == once
    assert not any(one.is_significant for one in often)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=30))
def test_uses_count_as_if_each_were_a_row(drawn: list[tuple[int, int]]) -> None:
    rows = [length for length, uses in drawn for _ in range(uses)]
    assume(rows)
    found = population([(length, 0.0) for length, _ in drawn], [])
    samples = [
        replace(one, num_uses=uses) for one, (_, uses) in zip(found.samples, drawn, strict=True)
    ]
    lengths = distribution_shifts(replace(found, samples=samples))[0]
    assert lengths.trained_mean == pytest.approx(np.mean(rows))
    generated = [length for length, _ in drawn]
    apart = [
        np.mean([one <= at for one in rows]) - np.mean([one <= at for one in generated])
        for at in range(6)
    ]
    assert lengths.distance == pytest.approx(max(map(abs, apart)))


def test_samples_without_a_reward_are_compared_by_their_lengths() -> None:
    samples = [GeneratedSample(task=("t", 0), response_length=3, reward=None, num_uses=1)]
    found = SamplePopulation(first_step=1, last_step=1, runs_of={("t", 0): 1}, samples=samples)
    assert [one.name for one in distribution_shifts(found)] == ["response_length", "task"]


def test_while_nothing_is_trained_on_there_is_nothing_to_compare() -> None:
    found = population([], [(1, 1.0)])
    assert distribution_shifts(found) == []
    assert population_metrics(found) == {
        "population/num_generated": 1.0,
        "population/num_trained": 0.0,
    }


def test_figures_are_numbers_that_monitors_can_show() -> None:
    figures = population_metrics(population([(5, 1.0)], [(9, 0.0)]))
    assert figures["population/response_length/generated"] == 7
    assert figures["population/reward/trained"] == 1
    assert all(map(math.isfinite, figures.values()))
