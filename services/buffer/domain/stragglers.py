"""Straggler cutoff of explore steps (`explorer.over_rollout`), and the size of the next step."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.stage import Stage

REASON = "left behind: enough tasks of its explore step had ended (`explorer.over_rollout`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTasks:
    """Task counts of an explore step, without refills."""

    explore_step: int
    num_drawn: int
    num_open: int
    num_ended: int
    """Closed or given up; tasks left behind are neither open nor ended."""

    def num_allowed(self, num_spare: int) -> int:
        """Returns how many more tasks may be left behind."""
        num_left_behind = self.num_drawn - self.num_open - self.num_ended
        return num_spare - num_left_behind


@dataclass(frozen=True, slots=True)
class CutTask:
    """A task that was left behind."""

    assignment_id: str
    explore_step: int
    position: int


def has_enough(tasks: StepTasks, num_spare: int) -> bool:
    """Returns whether the open tasks may be left behind."""
    return 0 < tasks.num_open <= tasks.num_allowed(num_spare)


def num_tasks_to_draw(stage: Stage, before: Sequence[StepTasks], num_kept_runs: int = 0) -> int:
    """Returns the number of tasks to draw for the next explore step.

    Tasks that ended beyond what earlier steps needed are subtracted, so that rows do not pile up
    and become stale. Kept runs of tasks that were left behind are subtracted too, in units of a
    task. A step that is still running counts as if it ended with the minimum.
    """
    drawn, spare = stage.plan.config.buffer.batch_size, stage.plan.num_spare_tasks
    surplus = sum(_num_expected(tasks, spare) - (drawn - spare) for tasks in before)
    surplus += num_kept_runs // stage.repeat_times
    return drawn - min(max(surplus, 0), drawn - spare - 1)


def _num_expected(tasks: StepTasks, num_spare: int) -> int:
    return tasks.num_ended if not tasks.num_open else tasks.num_drawn - num_spare
