"""Ratios of pairs of runs: neither their order nor the machine's speed moves the figure."""

import pytest

from benchmarks import user_processes
from benchmarks.experience_sink import WITH, WITHOUT, Measured, RunPair, balanced_ratio

MORE = 1.04
"""The cost that the pairs are to find."""
BEGINNING = 2.0


def run(touched: float, untouched: float, speed: float = 1.0) -> Measured:
    spent = {"buffer": touched * speed, "explorer": untouched * speed}
    return Measured(sum(spent.values()), BEGINNING, spent, rows_written=0, load=0.0)


def pair(first: str, *, later_costs: float = 1.0, speeds: tuple[float, float] = (1, 1)) -> RunPair:
    order = (first, WITHOUT if first == WITH else WITH)
    runs = {}
    for way, later, speed in zip(order, (1.0, later_costs), speeds, strict=True):
        step = (MORE if way == WITH else 1.0) * later * 8.0
        runs[way] = run(BEGINNING + step - 4.0, 4.0, speed)
    return RunPair(first, runs)


def test_what_the_second_run_of_a_pair_pays_more_cancels() -> None:
    pairs = [pair(first, later_costs=1.3) for first in (WITH, WITHOUT) * 3]
    figure = balanced_ratio(pairs, lambda pair: pair.ratio(BEGINNING))
    assert figure == pytest.approx(MORE)
    one_order = balanced_ratio(pairs[::2], lambda pair: pair.ratio(BEGINNING))
    assert one_order == pytest.approx(MORE / 1.3)
    assert user_processes.balanced_ratio([MORE * 1.3, MORE / 1.3] * 3) == pytest.approx(MORE)


def test_a_machine_that_slows_down_between_two_runs_moves_the_figure_at_one_speed_by_nothing() -> (
    None
):
    slowed = pair(WITHOUT, speeds=(1.0, 1.5))
    assert slowed.ratio_at_one_speed(BEGINNING) == pytest.approx(MORE)
    assert slowed.ratio(BEGINNING) > 1.5
