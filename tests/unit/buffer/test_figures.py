"""Selectors, and the figures of batches and evaluations."""

import math
import sys
from dataclasses import replace

import numpy as np
import pytest

from services.buffer.domain.batches import MeasuredRow, batch_metrics
from services.buffer.domain.evaluation import RunScore, summarise
from services.buffer.domain.task_draws import draw_row_numbers


def test_sequential_draws_go_round() -> None:
    assert draw_row_numbers("sequential", seeds=(1, 2), num_rows=3, first=2, count=5) == [
        2,
        0,
        1,
        2,
        0,
    ]


def test_shuffled_draws_take_each_row_once_an_epoch_and_do_not_depend_on_the_cut() -> None:
    whole = draw_row_numbers("shuffle", seeds=(1, 5), num_rows=10, first=0, count=30)
    parts = [row for first in range(0, 30, 3) for row in draw_row_numbers(
        "shuffle", seeds=(1, 5), num_rows=10, first=first, count=3
    )]  # fmt: skip
    assert parts == whole
    epochs = [whole[i : i + 10] for i in (0, 10, 20)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_follows_from_the_experiments_seed_and_the_selectors_own() -> None:
    orders = [
        tuple(draw_row_numbers("shuffle", seeds=seeds, num_rows=20, first=0, count=20))
        for seeds in ((1, 5), (2, 5), (1, 6), (5, 1), (-1, 5))
    ]
    assert len(set(orders)) == len(orders)
    assert (
        tuple(draw_row_numbers("shuffle", seeds=(1, 5), num_rows=20, first=0, count=20))
        == orders[0]
    )


def row(position: int, run: int, reward: float, **metrics: float) -> MeasuredRow:
    return MeasuredRow(
        explore_step=1,
        position=position,
        run=run,
        reward=reward,
        response_length=4 + run,
        version_min=3,
        metrics=metrics,
        run_metrics={"turns": 2.0 + position},
    )


def test_rows_with_a_prompt_that_is_too_long_are_counted() -> None:
    rows = [row(0, 0, 1.0), replace(row(1, 0, 0.0), finish_reason="prompt_truncated")]
    assert batch_metrics(rows, 4)["sample/num_long_prompts"] == 1.0
    assert "sample/num_long_prompts" not in batch_metrics(rows[:1], 4)


def test_batch_metrics_count_a_run_once_and_a_sample_each_time() -> None:
    rows = [
        row(0, 0, 1.0, accuracy=1.0),
        row(0, 0, 0.0, accuracy=0.0),
        row(1, 0, 1.0, accuracy=1.0),
    ]
    figures = batch_metrics(rows, step=6)
    assert figures["reward/mean"] == pytest.approx(2 / 3)
    assert (figures["reward/min"], figures["reward/max"]) == (0.0, 1.0)
    assert figures["group/reward_std"] == pytest.approx(0.25)
    assert figures["rollout/accuracy/mean"] == pytest.approx(2 / 3)
    assert (figures["rollout/accuracy/min"], figures["rollout/accuracy/max"]) == (0.0, 1.0)
    assert figures["rollout/turns/mean"] == pytest.approx(2.5)
    assert (figures["num_groups"], figures["sample/model_version/mean"]) == (2.0, 3.0)
    assert figures["sample/model_version_drift/max"] == 2.0
    assert "sample/num_unversioned_rows" not in figures


def test_rows_that_no_version_made_are_counted() -> None:
    foreign = replace(row(1, 0, 1.0), version_min=None)
    figures = batch_metrics([row(0, 0, 1.0), foreign], step=6)
    assert figures["sample/num_unversioned_rows"] == 1.0
    assert figures["sample/model_version/min"] == 3.0
    assert "sample/model_version/min" not in batch_metrics([foreign], step=6)


def test_an_evaluation_weighs_tasks_alike_however_often_they_ran() -> None:
    scores = [
        RunScore(assignment_id="a", values={"reward": 1.0}),
        RunScore(assignment_id="a", values={"reward": 0.0}),
        RunScore(assignment_id="b", values={"reward": 1.0, "x": float("nan")}),
    ]
    [figure] = summarise(scores, 2)
    assert (figure.name, figure.num_tasks, figure.mean) == ("reward", 2, 0.75)
    assert figure.standard_error == pytest.approx(np.std([0.5, 1.0], ddof=1) / np.sqrt(2))
    assert summarise(scores[:1], 2)[0].standard_error == 0.0


def of_two_tasks(*values: float) -> list[RunScore]:
    """Each task has two of these runs."""
    return [
        RunScore(assignment_id="ab"[number // 2], values={"perplexity": value})
        for number, value in enumerate(values)
    ]


def test_figures_of_values_whose_squares_are_no_numbers_are_those_of_small_ones() -> None:
    [small] = summarise(of_two_tasks(1.0, -2.0, 3.0, 4.0), 2)
    [large] = summarise(of_two_tasks(1e300, -2e300, 3e300, 4e300), 2)
    assert large.mean == pytest.approx(small.mean * 1e300)
    assert large.standard_error == pytest.approx(small.standard_error * 1e300)
    for own, expected in ((large.of_runs, small.of_runs), (large.of_tasks, small.of_tasks)):
        assert own == pytest.approx({name: value * 1e300 for name, value in expected.items()})


@pytest.mark.parametrize("signs", [(1, 1, 1, 1), (1, -1, 1, -1), (1, 1, -1, -1)])
def test_figures_of_the_largest_numbers_are_numbers(signs: tuple[int, ...]) -> None:
    [figure] = summarise(of_two_tasks(*(sign * sys.float_info.max for sign in signs)), 2)
    numbers = [figure.mean, figure.standard_error]
    assert all(map(math.isfinite, [*numbers, *figure.of_runs.values(), *figure.of_tasks.values()]))
