"""What is trained on is compared with what was generated."""

import math

import pytest

from services.buffer.domain.population import Generated, Population, population_figures, shifts


def population(trained: list[tuple[int, float]], left_out: list[tuple[int, float]]) -> Population:
    """Samples by length and reward, each of a task of its own."""
    both = [(one, True) for one in trained] + [(one, False) for one in left_out]
    return Population(
        first_step=1,
        last_step=2,
        runs_of={("train", number): 1 for number in range(len(both))},
        samples=[
            Generated(
                task=("train", number), response_length=length, reward=reward, is_trained=is_trained
            )
            for number, ((length, reward), is_trained) in enumerate(both)
        ],
    )


def test_nothing_is_shifted_where_everything_is_trained_on() -> None:
    found = {one.name: one for one in shifts(population([(5, 1.0), (9, 0.0)], []))}
    assert found.keys() == {"response_length", "reward", "task"}
    assert all(one.distance == 0 and not one.is_significant for one in found.values())
    assert found["response_length"].generated_mean == found["response_length"].trained_mean == 7


def test_leaving_out_the_long_ones_shifts_lengths_by_their_share() -> None:
    short, long = [(10, 0.5)] * 30, [(100, 0.5)] * 10
    lengths, rewards, tasks = shifts(population(short, long))
    assert lengths.distance == pytest.approx(0.25)
    assert lengths.is_significant
    assert (lengths.generated_mean, lengths.trained_mean) == (32.5, 10)
    assert rewards.distance == 0
    assert not rewards.is_significant
    assert tasks.distance == pytest.approx(0.25)


def test_leaving_out_regardless_of_length_is_not_called_a_shift() -> None:
    every = [(length, 0.0) for length in range(40)]
    lengths, *_ = shifts(population(every[::2], every[1::2]))
    assert not lengths.is_significant


def test_few_samples_prove_nothing() -> None:
    lengths, *_ = shifts(population([(1, 0.0)], [(100, 0.0)]))
    assert lengths.distance == 0.5
    assert not lengths.is_significant


def test_tasks_are_weighed_by_their_runs() -> None:
    """Half of the runs were of a task that gave nothing to train on."""
    samples = [Generated(task=("train", 0), response_length=1, reward=1.0, is_trained=True)] * 4
    found = Population(
        first_step=1, last_step=1, runs_of={("train", 0): 4, ("train", 1): 4}, samples=samples
    )
    assert shifts(found)[-1].distance == 0.5


def test_samples_without_a_reward_are_compared_by_their_lengths() -> None:
    samples = [Generated(task=("t", 0), response_length=3, reward=None, is_trained=True)]
    found = Population(first_step=1, last_step=1, runs_of={("t", 0): 1}, samples=samples)
    assert [one.name for one in shifts(found)] == ["response_length", "task"]


def test_while_nothing_is_trained_on_there_is_nothing_to_compare() -> None:
    found = population([], [(1, 1.0)])
    assert shifts(found) == []
    assert population_figures(found) == {
        "population/num_generated": 1.0,
        "population/num_trained": 0.0,
    }


def test_figures_are_numbers_that_monitors_can_show() -> None:
    figures = population_figures(population([(5, 1.0)], [(9, 0.0)]))
    assert figures["population/response_length/generated"] == 7
    assert figures["population/reward/trained"] == 1
    assert all(map(math.isfinite, figures.values()))
