"""The best and the worst of k runs are what many draws come to."""

import math
from itertools import combinations

import numpy as np
import pytest

from services.buffer.domain.evaluation import (
    RunScore,
    expected_best_of_k,
    pass_at_k,
    pass_at_k_metrics,
    statistics_of_runs,
    summarise,
    with_failed_runs,
)


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_the_best_of_k_is_the_mean_over_many_draws(k: int) -> None:
    values = [0.1, 0.9, 0.9, 0.4, 0.0]
    draws = np.random.default_rng(42).choice(values, size=(200_000, k))
    assert expected_best_of_k(k, values) == pytest.approx(draws.max(axis=1).mean(), abs=2e-3)


def test_names_go_by_powers_of_two_up_to_the_number_of_runs() -> None:
    assert list(statistics_of_runs([[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]], 6)) == [
        "std@6",
        *("best@2", "worst@2", "best@4", "worst@4", "best@6", "worst@6"),
    ]
    assert statistics_of_runs([[1.0], [0.0]], 1) == {}


def test_figures_are_means_over_tasks_also_where_runs_are_missing() -> None:
    found = statistics_of_runs([[0.0, 1.0], [1.0]], 2)
    assert found == pytest.approx({"std@2": 0.25, "best@2": 0.875, "worst@2": 0.625})


def test_runs_that_all_agree_have_no_best() -> None:
    found = statistics_of_runs([[0.5] * 8], 8)
    assert found.pop("std@8") == 0.0
    assert set(found.values()) == {0.5}


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_share_of_all_choices_of_k_runs_that_have_a_right_one(n: int) -> None:
    for num_passed in range(n + 1):
        runs = [True] * num_passed + [False] * (n - num_passed)
        for k in range(1, n + 1):
            chosen = [any(runs[place] for place in some) for some in combinations(range(n), k)]
            found = pass_at_k(n, num_passed, k)
            assert found == pytest.approx(sum(chosen) / len(chosen))
            assert found == pytest.approx(1 - math.comb(n - num_passed, k) / math.comb(n, k))


def test_pass_at_k_of_many_runs_is_exact() -> None:
    assert pass_at_k(4096, 3, 1024) == pytest.approx(
        1 - math.comb(4093, 1024) / math.comb(4096, 1024), rel=1e-9
    )


def test_pass_at_k_draws_no_run_twice_and_best_at_k_does() -> None:
    tasks = [[1.0, 0.0, 0.0, 0.0], [0.0] * 4]
    assert pass_at_k_metrics(tasks, 4) == {"pass@1": 0.125, "pass@2": 0.25, "pass@4": 0.5}
    assert statistics_of_runs(tasks, 4)["best@4"] == pytest.approx((1 - 0.75**4) / 2)


def test_tasks_with_fewer_runs_than_k_have_no_pass_at_k() -> None:
    found = pass_at_k_metrics([[1.0, 0.0, 0.0, 0.0], [0.0]], 4)
    assert found == pytest.approx({"pass@1": 0.125, "pass@2": 0.5, "pass@4": 1.0})
    assert pass_at_k_metrics([[1.0], [0.0]], 4) == {"pass@1": 0.5}


def test_scores_above_one_do_not_say_what_passes() -> None:
    assert pass_at_k_metrics([[5.0, 0.0]], 2) == {}
    assert pass_at_k_metrics([[0.99, -1.0], [1.0, 1.0]], 2) == {"pass@1": 0.5, "pass@2": 0.5}
    scores = [RunScore(assignment_id="a", values={"turns": turns}) for turns in (0.5, 1.0)]
    [figure] = summarise(scores, 2)
    assert not any(name.startswith("pass") for name in figure.of_runs)


def of(task: str, **values: float) -> RunScore:
    return RunScore(assignment_id=task, values=values)


def test_failed_runs_have_0_in_scores_and_not_in_other_metrics() -> None:
    finished = [of("a", accuracy=1.0, one_turn=1.0, turns=3.0, reward=2.5)] * 2
    figures = {own.name: own for own in summarise(with_failed_runs(finished, {"b": 2}), 2)}
    assert {name: (own.mean, own.num_tasks) for name, own in figures.items()} == {
        "accuracy": (0.5, 2),
        "one_turn": (1.0, 1),
        "reward": (1.25, 2),
        "turns": (3.0, 1),
    }
    assert figures["accuracy"].standard_error == pytest.approx(0.5)
    assert figures["accuracy"].of_runs["pass@2"] == 0.5
    assert figures["accuracy"].of_tasks["min"] == 0.0
    assert "pass@2" not in figures["one_turn"].of_runs


def test_an_evaluation_of_failed_runs_alone_has_reward_0() -> None:
    [figure] = summarise(with_failed_runs([], {"a": 2, "b": 2}), 2)
    assert (figure.name, figure.mean, figure.num_tasks) == ("reward", 0.0, 2)
    assert summarise([], 2) == []
