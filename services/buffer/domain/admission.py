"""Admission of the next explore step: by the weights it needs, and by a credit in rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.buffer.domain.stage import Stage
from trinity.config.plan.rollouts_ahead import credit_rows, explore_steps_ahead
from trinity.runtime.members import WaitKind

STRAGGLER_REASON = (
    "left behind: enough tasks of its explore step had ended (`explorer.over_rollout`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLoad:
    """Counts of rows that are on their way to a batch."""

    num_outstanding: int
    """Runs that have not ended, and rows that the pipeline has not finished."""
    num_ready: int

    @property
    def total(self) -> int:
        """Outstanding and ready rows together."""
        return self.num_outstanding + self.num_ready


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """The reason why the next explore step does not open yet, or never will."""

    reason: str
    is_final: bool = False
    wants_version: bool = False
    """True if the trainer should publish the weights it has."""
    waits_for: WaitKind = WaitKind.STATE


def check_step_order(stage: Stage) -> AdmissionRefusal | None:
    """Returns why explore step `stage.explore_step + 1` may not open now; None if it may.

    The step opens once the batches that produce its weights are recorded. Its work is leased once
    those weights are published.
    """
    step = stage.explore_step + 1
    if step > stage.total_explore_steps:
        return AdmissionRefusal("every explore step is open", is_final=True)
    if stage.finished_step is not None:
        return AdmissionRefusal("training has finished", is_final=True)
    if stage.published is None:
        return AdmissionRefusal("the trainer has not published weights yet")
    if stage.plan.has_dynamic_sync:
        return None
    needed = stage.required_version(step)
    if needed > max(stage.published, stage.version_after(stage.recorded_step)):
        return AdmissionRefusal(
            f"explore step {step} needs weights version {needed}, the trainer has published "
            f"version {stage.published} and trained step {stage.trained_step}"
        )
    return None


def check_credit(stage: Stage, load: RowLoad) -> AdmissionRefusal | None:
    """Returns a refusal if explore step `stage.explore_step + 1` would exceed the row credit."""
    if stage.plan.trains_explore_steps:
        return _check_steps_ahead(stage)
    if stage.plan.rows_per_explore_step <= credit_rows(stage.plan) - load.total:
        return None
    return AdmissionRefusal(
        f"explore step {stage.explore_step + 1} waits until the trainer has taken some of "
        f"{load.total} rows"
    )


def _check_steps_ahead(stage: Stage) -> AdmissionRefusal | None:
    """Counts explore steps instead of rows: a step may have any number of samples."""
    sync, step = stage.plan.config.synchronizer, stage.explore_step + 1
    if step <= stage.recorded_step + sync.sync_interval + explore_steps_ahead(stage.plan):
        return None
    return AdmissionRefusal(
        f"explore step {step} waits until the trainer has taken explore step "
        f"{stage.recorded_step + 1}"
    )


def check_newer_weights(stage: Stage, load: RowLoad) -> AdmissionRefusal | None:
    """Returns a refusal if explore step `stage.explore_step + 1` waits for newer weights.

    It waits only after all earlier runs have ended, and only if the trainer still has steps to
    train or weights to publish: otherwise no newer weights can come.
    """
    step = stage.explore_step + 1
    if not stage.plan.requests_version(step) or stage.published is None:
        return None
    if load.num_outstanding:
        return AdmissionRefusal(f"explore step {step} waits for the end of those before it")
    if stage.published > stage.step_version:
        return None
    if stage.recorded_step > stage.published or _has_next_batch(stage, load):
        return AdmissionRefusal(
            f"explore step {step} waits for newer weights than version {stage.published}",
            wants_version=True,
        )
    return None


def _has_next_batch(stage: Stage, load: RowLoad) -> bool:
    """Returns whether the trainer will get a batch, now that no run is outstanding."""
    if stage.plan.trains_explore_steps:
        return stage.recorded_step < stage.explore_step
    return load.num_ready >= stage.plan.num_fresh_rows


def version_to_open(stage: Stage) -> int:
    """Returns the weights version for explore step `stage.explore_step + 1`, once it may open."""
    if not stage.plan.has_dynamic_sync:
        return stage.required_version(stage.explore_step + 1)
    assert stage.published is not None, "no explore step opens before there are weights"
    return max(stage.published, stage.step_version)


def can_open_after(stage: Stage, train_step: int) -> bool:
    """Returns whether training up to `train_step` is enough for another explore step to open."""
    step = stage.explore_step + 1
    return (
        step <= stage.total_explore_steps
        and stage.finished_step is None
        and (stage.plan.has_dynamic_sync or _is_trained_after(stage, train_step))
    )


def _is_trained_after(stage: Stage, train_step: int) -> bool:
    needed = stage.required_version(stage.explore_step + 1)
    return needed <= stage.version_after(train_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExploreStepTasks:
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
class CancelledStraggler:
    """A task that was left behind."""

    assignment_id: str
    explore_step: int
    position: int


def can_cut_stragglers(tasks: ExploreStepTasks, num_spare: int) -> bool:
    """Returns whether the open tasks may be left behind."""
    return 0 < tasks.num_open <= tasks.num_allowed(num_spare)


def num_tasks_to_draw(
    stage: Stage, before: Sequence[ExploreStepTasks], num_kept_runs: int = 0
) -> int:
    """Returns the number of tasks to draw for the next explore step.

    Tasks that ended beyond the need of earlier steps are subtracted, so that rows do not pile up
    and become stale. Kept runs of tasks that were left behind are subtracted too, in units of a
    task. A step that is still running counts as if it ended with the minimum.
    """
    drawn, spare = stage.plan.config.buffer.batch_size, stage.plan.num_droppable_tasks
    surplus = sum(_num_expected(tasks, spare) - (drawn - spare) for tasks in before)
    surplus += num_kept_runs // stage.repeat_times
    return drawn - min(max(surplus, 0), drawn - spare - 1)


def _num_expected(tasks: ExploreStepTasks, num_spare: int) -> int:
    return tasks.num_ended if not tasks.num_open else tasks.num_drawn - num_spare
