"""Explore steps and evaluations in the explorer's log."""

import logging
from dataclasses import replace

import pytest

from services.explorer.telemetry import ExploreStepLog
from services.explorer.types import Assignment, Attempt, AttemptResult, RolloutKind
from tests.unit.explorer.builders import KEY, build_assignment
from tests.unit.test_codec import an_experience


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="services.explorer.telemetry")


def task(step: int, position: int, kind: RolloutKind = RolloutKind.TRAIN) -> Assignment:
    return replace(build_assignment(), kind=kind, explore_step=step, position=position)


def result(assignment: Assignment, *rewards: float, failure: str = "") -> AttemptResult:
    attempt = Attempt(key=KEY, assignment=assignment, run=0, number=0)
    made = [
        replace(an_experience(), reward=reward, metrics={"turns": 2.0, "name": 3.0})
        for reward in rewards
    ]
    return AttemptResult(attempt=attempt, experiences=made, failure=failure)


def test_a_step_begins_with_its_first_task_and_ends_with_its_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = ExploreStepLog(tasks_per_step=2)
    first, second = task(3, 0), task(3, 1)
    steps.begin(first)
    steps.record(result(first, 0.0, 1.0))
    steps.record(result(first, failure="broken"))
    steps.end(first)
    assert caplog.messages == ["explore step began"]
    steps.begin(second)
    steps.record(result(second, 0.5))
    steps.end(second)
    assert caplog.messages == ["explore step began", "explore step ended"]
    shown = vars(caplog.records[1])
    assert (shown["step"], shown["tasks"], shown["experiences"]) == (3, 2, 3)
    assert (shown["reward_mean"], shown["reward_min"], shown["reward_max"]) == (0.5, 0.0, 1.0)
    assert (shown["failed_attempts"], shown["turns"], shown["metric/name"]) == (1, 2.0, 3.0)


def test_a_part_of_a_step_ends_when_other_work_is_granted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = ExploreStepLog(tasks_per_step=8)
    first, second, later = task(1, 0), task(1, 1), task(2, 0)
    steps.begin(first)
    steps.end(first)
    steps.end_all_but([second])
    assert caplog.messages == ["explore step began"]
    steps.begin(second)
    steps.end_all_but([later])
    assert caplog.messages == ["explore step began"]
    steps.end(second)
    steps.end_all_but([later])
    assert caplog.messages == ["explore step began", "explore step ended"]


def test_an_evaluation_is_logged_by_version_and_taskset(
    caplog: pytest.LogCaptureFixture,
) -> None:
    steps = ExploreStepLog(tasks_per_step=1)
    measured = replace(task(7, 0, RolloutKind.EVAL), taskset="held_out")
    steps.begin(measured)
    steps.end(measured)
    steps.end_all_but()
    assert caplog.messages == ["evaluation began", "evaluation ended"]
    assert (vars(caplog.records[1])["version"], vars(caplog.records[1])["taskset"]) == (
        7,
        "held_out",
    )
