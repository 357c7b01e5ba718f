"""The best and the worst of k runs are what many draws come to."""

import numpy as np
import pytest

from services.buffer.domain.evaluation import expected_best_of_k, pass_at_k_metrics


@pytest.mark.parametrize("k", [1, 2, 4, 5])
def test_the_best_of_k_is_the_mean_over_many_draws(k: int) -> None:
    values = [0.1, 0.9, 0.9, 0.4, 0.0]
    draws = np.random.default_rng(42).choice(values, size=(200_000, k))
    assert expected_best_of_k(k, values) == pytest.approx(draws.max(axis=1).mean(), abs=2e-3)


def test_names_go_by_powers_of_two_up_to_the_number_of_runs() -> None:
    assert list(pass_at_k_metrics([[0.0, 1.0, 1.0, 0.0, 1.0, 0.0]])) == [
        "std@6",
        *("best@2", "worst@2", "best@4", "worst@4", "best@6", "worst@6"),
    ]
    assert pass_at_k_metrics([[1.0], [0.0]]) == {}
    assert pass_at_k_metrics([]) == {}


def test_figures_are_means_over_tasks_also_where_runs_are_missing() -> None:
    found = pass_at_k_metrics([[0.0, 1.0], [1.0]])
    assert found == pytest.approx({"std@2": 0.25, "best@2": 0.875, "worst@2": 0.625})


def test_runs_that_all_agree_have_no_best() -> None:
    found = pass_at_k_metrics([[0.5] * 8])
    assert found.pop("std@8") == 0.0
    assert set(found.values()) == {0.5}
