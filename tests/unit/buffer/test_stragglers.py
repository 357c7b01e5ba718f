"""When an explore step has enough, and how many tasks the next one draws."""

import pytest

from services.buffer.domain.admission import ExploreStepTasks, can_cut_stragglers, num_tasks_to_draw
from tests.unit.buffer.builders import plan, stage
from tests.unit.config.builders import stage as plan_stage

NUM_SPARE = 4


def step(num_drawn: int, num_open: int, num_ended: int) -> ExploreStepTasks:
    return ExploreStepTasks(
        explore_step=1, num_drawn=num_drawn, num_open=num_open, num_ended=num_ended
    )


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        (step(16, 5, 11), False),
        (step(16, 4, 12), True),
        (step(16, 1, 15), True),
        (step(16, 0, 16), False),
        (step(13, 4, 9), True),
        (
            step(16, 4, 8),
            False,
        ),  # four are left behind already, and these were given another chance
    ],
)
def test_a_step_has_enough_when_no_more_are_open_than_may_be_left_behind(
    tasks: ExploreStepTasks, expected: bool
) -> None:
    assert can_cut_stragglers(tasks, NUM_SPARE) is expected


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ([], 16),
        ([step(16, 0, 12)], 16),
        ([step(16, 0, 15)], 13),
        ([step(16, 0, 15), step(13, 0, 9)], 16),
        ([step(16, 0, 15), step(13, 0, 11)], 14),
        ([step(16, 2, 14)], 16),  # it goes on: who ends in time is not known yet
        ([step(16, 0, 15), step(13, 6, 7)], 16),
    ],
)
def test_what_ended_beyond_the_need_of_a_step_is_drawn_less_in_the_next(
    before: list[ExploreStepTasks], expected: int
) -> None:
    explored = plan_stage(
        algorithm={"repeat_times": 2},
        buffer={"batch_size": 16},
        explorer={"over_rollout": {"ratio": 0.25}},
    )
    now = stage(explored)
    assert (explored.num_droppable_tasks, explored.rows_per_explore_step) == (NUM_SPARE, 24)
    assert num_tasks_to_draw(now, before) == expected


def test_runs_that_are_kept_spare_the_next_step_as_many_tasks_as_they_make() -> None:
    explored = plan_stage(
        algorithm={"repeat_times": 2},
        buffer={"batch_size": 16},
        explorer={"over_rollout": {"ratio": 0.25, "return_partial_tasks": True}},
    )
    before = [step(16, 0, 12)]
    assert num_tasks_to_draw(stage(explored), before, 1) == 16
    assert num_tasks_to_draw(stage(explored), before, 5) == 14


def test_a_step_needs_a_task_of_its_own() -> None:
    explored = plan_stage(buffer={"batch_size": 10}, explorer={"over_rollout": {"ratio": 0.9}})
    assert explored.num_droppable_tasks == 9
    assert num_tasks_to_draw(stage(explored), [step(10, 0, 10)]) == 10


def test_without_the_key_all_tasks_are_waited_for() -> None:
    assert plan().num_droppable_tasks == 0
