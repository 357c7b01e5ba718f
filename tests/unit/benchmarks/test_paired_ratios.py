"""The order of the runs of a pair does not move the figure."""

import pytest

from benchmarks.user_processes import balanced_ratio


def test_what_the_second_run_of_a_pair_pays_more_cancels() -> None:
    cost, later = 1.04, 1.3
    ratios = [cost * later, cost / later] * 3
    assert balanced_ratio(ratios) == pytest.approx(cost)
    assert balanced_ratio(ratios[::2]) == pytest.approx(cost * later)
