"""Scores of tasks: the heat map, the orders of tasks, and pairs of evaluations."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import grpc
import pytest

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.errors import TrinityError
from trinity.studio.connection import OpenRun
from trinity.studio.scores import (
    Outcome,
    Score,
    ScoreQuestion,
    ScoreTable,
    TaskHistory,
    TaskOrder,
    ask_scores,
    count_outcomes,
    heat_level,
    heat_text,
    ordered_tasks,
    pairs_line,
    pairs_of,
    short_names,
    summary_of,
    version_spans,
)


def score(num_passed: int, num_scored: int = 4, *, mean: float | None = None) -> Score:
    share = num_passed / num_scored if num_scored else None
    return Score(
        num_runs=4,
        num_scored=num_scored,
        num_passed=num_passed,
        mean=share if mean is None else mean,
    )


def a_task(
    index: int, *passed: int | None, num_draws: int = 1, taskset: str = "math"
) -> TaskHistory:
    """Of four runs a version; None where it was not drawn."""
    versions = {v: score(n) for v, n in enumerate(passed) if n is not None}
    return TaskHistory(taskset=taskset, index=index, num_draws=num_draws, versions=versions)


def a_table(*tasks: TaskHistory) -> ScoreTable:
    return ScoreTable(tasks=tasks, num_draws=9, num_draws_read=9)


def order_of(order: TaskOrder, *tasks: TaskHistory) -> list[int]:
    return [task.index for task in ordered_tasks(a_table(*tasks), order)]


TASKS = (
    a_task(0, 4, 4, 4, num_draws=3),
    a_task(1, 0, 0, num_draws=9),
    a_task(2, 0, 3, 1, 4, num_draws=4),
    a_task(3, 0),
    a_task(4, 1, 1),
)


def test_each_order_has_its_own_first_task() -> None:
    assert order_of(TaskOrder.HARDEST, *TASKS) == [1, 3, 4, 2, 0]
    assert order_of(TaskOrder.EASIEST, *TASKS) == [0, 2, 4, 1, 3]
    assert order_of(TaskOrder.FLIPPING, *TASKS) == [2]
    assert order_of(TaskOrder.NEVER, *TASKS) == [1, 3]
    assert order_of(TaskOrder.DRAWN, *TASKS)[:2] == [1, 2]


def test_a_task_without_any_score_is_no_hard_one() -> None:
    unscored = TaskHistory(taskset="math", index=9, num_draws=1, versions={0: score(0, 0)})
    assert order_of(TaskOrder.HARDEST, unscored, TASKS[0]) == [0]
    assert order_of(TaskOrder.NEVER, unscored) == []
    assert heat_text(unscored.versions[0]) == "?"
    assert heat_level(unscored.versions[0]) is None


def test_a_flip_goes_over_half_of_the_runs() -> None:
    assert a_task(0, 0, 1, 0, 1).num_flips == 0
    assert a_task(0, 1, 2, 1).num_flips == 2
    assert a_task(0, 4, None, 0).num_flips == 1


def test_cells_have_words_beside_their_colour() -> None:
    cells = [Score(), score(0), score(1), score(2), score(3), score(4)]
    assert [heat_text(cell) for cell in cells] == ["", "0%", "25%", "50%", "75%", "100%"]
    assert [heat_level(cell) for cell in cells] == [None, 0, 1, 2, 2, 3]


def test_many_versions_share_columns_and_no_run_is_lost() -> None:
    spans = version_spans(range(0, 100, 2), most=16)
    assert len(spans) <= 16
    assert (spans[0].label, spans[-1].last) == ("v0-6", 98)
    task = TaskHistory(
        taskset="math", index=0, num_draws=50, versions={v: score(1) for v in range(0, 100, 2)}
    )
    assert sum(span.score(task).num_scored for span in spans) == task.total.num_scored == 200
    assert [span.label for span in version_spans([3, 7])] == ["v3", "v7"]
    assert version_spans([]) == []


def test_means_count_runs_and_not_versions() -> None:
    task = TaskHistory(
        taskset="math",
        index=0,
        num_draws=2,
        versions={0: score(0, 1, mean=0.0), 1: score(3, 3, mean=1.0)},
    )
    assert task.total.mean == 0.75


def test_the_summary_counts_each_task_once() -> None:
    summary = summary_of(a_table(*TASKS))
    assert (summary.num_never, summary.num_always, summary.num_flipping) == (2, 1, 1)
    assert summary.line.startswith("5 tasks, mean score 0.458")
    assert summary_of(a_table()).mean is None


def test_rows_are_named_by_their_taskset_only_where_there_are_several() -> None:
    assert short_names([a_task(12)]) == {"math:12": "12"}
    assert short_names([a_task(1), a_task(1, taskset="code")]) == {
        "math:1": "math:1",
        "code:1": "code:1",
    }


def test_pairs_show_lost_tasks_first_and_the_largest_change_among_them() -> None:
    table = a_table(
        a_task(0, 4, 4),
        a_task(1, 0, 4),
        a_task(2, 4, 3),
        a_task(3, 4, 0),
        a_task(4, 0, 0),
        a_task(5, 2, 2),
        a_task(6, 4),
    )
    pairs = pairs_of(table, 0, 1)
    assert [(pair.task.index, pair.outcome) for pair in pairs] == [
        (3, Outcome.LOST),
        (2, Outcome.LOST),
        (1, Outcome.WON),
        (4, Outcome.UNSOLVED),
        (0, Outcome.SOLVED),
        (5, Outcome.PARTLY),
        (6, Outcome.MISSING),
    ]
    assert count_outcomes(pairs)[Outcome.LOST] == 2
    line = pairs_line(pairs, 0, 1)
    assert "over 6 tasks" in line
    assert "2 lost, 1 won" in line
    back = pairs_of(table, 1, 0)
    assert count_outcomes(back)[Outcome.WON] == 2


def test_pairs_of_nothing_say_so() -> None:
    assert pairs_line([], 0, 1) == "no task was measured"
    assert "1 not measured in both" in pairs_line(pairs_of(a_table(a_task(0, 4)), 0, 1), 0, 1)


class Answers:
    """Answers ListTaskScores; the last request is kept."""

    def __init__(self, *messages: query_pb2.ListTaskScoresResponse, fails: bool = False) -> None:
        self.messages = messages
        self.fails = fails
        self.request = query_pb2.ListTaskScoresRequest()

    async def ListTaskScores(
        self, request: query_pb2.ListTaskScoresRequest, **_: Any
    ) -> AsyncIterator[query_pb2.ListTaskScoresResponse]:
        self.request = request
        for message in self.messages:
            yield message
        if self.fails:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), "gone"
            )


def asked(answers: Answers, question: ScoreQuestion) -> ScoreTable:
    opened = cast(OpenRun, SimpleNamespace(queries=answers))
    return asyncio.run(ask_scores(opened, buffer_pb2.StageKey(stage="rft"), question))


def page_of(tasks: Sequence[query_pb2.TaskScores]) -> query_pb2.ListTaskScoresResponse:
    return query_pb2.ListTaskScoresResponse(page=query_pb2.TaskScoresPage(tasks=tasks))


def test_an_answer_in_parts_is_read_whole() -> None:
    head = query_pb2.TaskScoresHead(num_draws=5, num_draws_read=3)
    scored = query_pb2.VersionScore(version=4, num_runs=2, num_scored=1, num_passed=1, mean=1.5)
    unscored = query_pb2.VersionScore(version=5, num_runs=2, mean=float("nan"))
    first = query_pb2.TaskScores(taskset="a", task_index=1, num_draws=7, versions=[scored])
    second = query_pb2.TaskScores(taskset="a", task_index=2, versions=[unscored])
    answers = Answers(
        query_pb2.ListTaskScoresResponse(head=head), page_of([first]), page_of([second])
    )
    table = asked(answers, ScoreQuestion(taskset="a", metric="reward", pass_score=0.5))
    assert [task.name for task in table.tasks] == ["a:1", "a:2"]
    assert (table.tasks[0].num_draws, table.tasks[0].versions[4].mean) == (7, 1.5)
    assert table.tasks[1].versions[5].mean is None
    assert (table.is_cut, table.versions) == (True, (4, 5))
    assert answers.request.kind == buffer_pb2.ASSIGNMENT_KIND_EVAL
    assert (answers.request.metric, answers.request.pass_score) == ("", 0.5)
    asked(answers, ScoreQuestion(metric="accuracy"))
    assert answers.request.kind == buffer_pb2.ASSIGNMENT_KIND_TRAIN
    assert answers.request.metric == "accuracy"


def test_a_service_that_fails_in_the_middle_is_told_as_our_error() -> None:
    with pytest.raises(TrinityError, match="gone"):
        asked(Answers(fails=True), ScoreQuestion())
