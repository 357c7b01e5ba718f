"""Bounds on rollouts that are ahead of training: explore steps, rows, and the lag that follows."""

import math

from trinity.config.plan.stage_plan import StagePlan


def explore_steps_ahead(plan: StagePlan) -> int:
    """Returns the explore steps that may be on their way besides those of the next version."""
    if plan.config.synchronizer.sync_style == "fully_async":
        return plan.config.explorer.max_inflight_batches
    return 1 + plan.config.synchronizer.sync_offset


def credit_rows(plan: StagePlan) -> int:
    """Returns the most rows that may be outstanding or ready after another explore step opens.

    The trainer needs `sync_interval` batches until its next version, and the explorer may be some
    steps ahead of the one it works on. Rows of data in a batch take no credit. A replay buffer is
    bounded by its own capacity. Where a train step is an explore step, explore steps are counted
    instead. Tasks that may be left behind (`explorer.over_rollout`) run like all others. Without a
    trainer, an explore step may open while the previous one is still running.
    """
    rows = plan.rows_per_explore_step + plan.num_droppable_tasks * plan.algorithm.repeat_times
    ahead = explore_steps_ahead(plan) * rows
    if not plan.needs_training:
        return ahead + rows
    kept = plan.replay.capacity if plan.replay else 0
    return plan.config.synchronizer.sync_interval * plan.num_rollout_rows + ahead + kept


def largest_lag(plan: StagePlan) -> int:
    """Returns the most train steps from the weights of a rollout to the step that trains it.

    A rollout that takes longer than all that begin after it may be older.
    """
    steps = math.ceil(credit_rows(plan) / plan.num_fresh_rows)
    return plan.config.synchronizer.sync_interval + steps
