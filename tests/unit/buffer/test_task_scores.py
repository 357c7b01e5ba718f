"""Scores of tasks over versions."""

import math

from services.buffer.domain.sample_statistics import TaskDraw, task_scores


def draw(name: str, index: int, version: int) -> TaskDraw:
    return TaskDraw(assignment_id=name, task=("train", index), version=version, num_runs=2)


def test_runs_count_by_task_and_version_in_order() -> None:
    draws = [draw("d", 7, 4), draw("a", 7, 0), draw("b", 2, 0), draw("c", 7, 4)]
    found = task_scores(draws, {"a": [0.0, 1.0], "c": [1.0], "d": [0.5, 0.25]}, 0.5)
    assert [scores.task for scores in found] == [("train", 2), ("train", 7)]
    first, second = found[1].versions.items()
    assert (first[0], second[0]) == (0, 4)
    assert (first[1].num_runs, first[1].num_scored, first[1].num_passed) == (2, 2, 1)
    assert (second[1].num_runs, second[1].num_scored, second[1].num_passed) == (4, 3, 2)
    assert second[1].mean == (1.0 + 0.5 + 0.25) / 3


def test_a_run_without_a_score_is_no_failure() -> None:
    [found] = task_scores([draw("a", 0, 1)], {"a": [math.nan]}, 0.5)
    score = found.versions[1]
    assert (score.num_runs, score.num_scored, score.num_passed) == (2, 0, 0)
    assert math.isnan(score.mean)
