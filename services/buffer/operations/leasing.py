"""Leases work to explorers, and opens explore steps as they are admitted."""

import dataclasses
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from services.buffer import telemetry
from services.buffer.domain.admission import (
    AdmissionRefusal,
    check_credit,
    check_newer_weights,
    check_step_order,
    version_to_open,
)
from services.buffer.domain.batches import BatchWait
from services.buffer.domain.stage import AssignmentKind, Stage, StageState
from services.buffer.operations.explore_steps import (
    check_queue,
    count_tasks_to_draw,
    draw_counter_after,
    draw_tasks,
    finish_if_explored,
    log_progress,
    open_interval_evaluations,
    request_version,
)
from services.buffer.store.assignments import (
    LeaseGrant,
    NewAssignment,
    free_lost_leases,
    insert_assignments,
    seconds_until_expiry,
    take_leases,
)
from services.buffer.store.database import notify, work_topic
from services.buffer.store.ready_rows import current_load
from services.buffer.store.runs import OpenWork, oldest_open_work
from services.buffer.store.stages import lock_stage, update_stage
from trinity.runtime.members import WaitKind
from trinity.runtime.sql import Connection
from trinity.types import StageKey

logger = logging.getLogger(__name__)

WAITS_FOR_CLIENTS = "clients have not committed more calls"


def describe_rollouts(work: OpenWork) -> str:
    """Describes open training work of an explore step."""
    return f"explore step {work.explore_step}: {_describe(work)}"


def wait_for_scopes(explore_step: int, num_groups: int, num_awaiting: int) -> BatchWait:
    """Returns the wait for groups that are complete but not in batches yet."""
    if num_awaiting == num_groups:
        return BatchWait(
            f"explore step {explore_step}: {num_groups} groups wait for rewards that come later "
            "(`trinity feedback` gives them)",
            waits_for=WaitKind.REWARDS,
        )
    awaiting = f", {num_awaiting} further ones wait for their rewards" if num_awaiting else ""
    working = num_groups - num_awaiting
    return BatchWait(
        f"explore step {explore_step}: the pipeline works on {working} groups{awaiting}"
    )


def _describe(work: OpenWork) -> str:
    still_open = f"{work.num_open} of {work.num_all} assignments still open"
    holders = f", held by explorer {' and '.join(work.holders)}" if work.holders else ""
    pending = f", {work.num_pending} not leased" if work.num_pending else ""
    return still_open + holders + pending


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """An explorer's request for work."""

    key: StageKey
    explorer_id: str
    max_assignments: int
    lease_seconds: float
    held: Collection[str] | None
    """Tokens of all leases that it holds; None if not given."""


@dataclass(frozen=True, slots=True)
class LeasesGranted:
    """Leases for the explorer."""

    grants: Sequence[LeaseGrant]
    session_key: bytes = field(repr=False)
    """Key of the addresses of their sessions."""


@dataclass(frozen=True, slots=True)
class LeasesDelayed:
    """No work now; a lease may expire after `look_again_seconds`."""

    reason: str
    look_again_seconds: float | None = None
    waits_for: WaitKind = WaitKind.STATE


@dataclass(frozen=True, slots=True)
class LeasingEnded:
    """There will be no more work."""

    state: Literal["drained", "cancelled"]
    reason: str


LeaseResult = LeasesGranted | LeasesDelayed | LeasingEnded


async def lease(connection: Connection, request: LeaseRequest) -> LeaseResult:
    """Leases work, or returns the reason for a delay or for the end."""
    stage = await lock_stage(connection, request.key)
    if ended := _leasing_ended(stage):
        return ended
    key, explorer_id, held = request.key, request.explorer_id, request.held
    # Leases that were granted in a response that the explorer never received are free.
    if held is not None and await free_lost_leases(connection, key, explorer_id, held):
        await notify(connection, work_topic(key))
    stage, refused = await _open_explore_steps(connection, stage, request.max_assignments)
    grants = await take_leases(
        connection,
        stage,
        explorer_id=explorer_id,
        max_assignments=request.max_assignments,
        lease_seconds=request.lease_seconds,
    )
    if grants:
        logger.debug(
            "work is leased", extra={"explorer": request.explorer_id, "tasks": len(grants)}
        )
        return LeasesGranted(grants, stage.session_key or b"")
    may_end = refused.is_final and not stage.plan.needs_training
    if may_end and await finish_if_explored(connection, stage):
        return LeasingEnded("drained", "")
    reason = await _why_nothing(connection, stage, refused)
    kind = refused.waits_for if reason == refused.reason else WaitKind.STATE
    return LeasesDelayed(reason, await seconds_until_expiry(connection, stage.key), kind)


def _leasing_ended(stage: Stage) -> LeasingEnded | None:
    if stage.state is StageState.FINISHED:
        return LeasingEnded("drained", "")
    if not stage.is_open:
        return LeasingEnded("cancelled", stage.reason)
    return None


async def _open_explore_steps(
    connection: Connection, stage: Stage, max_assignments: int
) -> tuple[Stage, AdmissionRefusal]:
    """Opens steps until one is refused or there is enough for the lease; returns the refusal.

    Thousands of steps may be allowed to open; opening all of them in one call would exceed its
    deadline.
    """
    num_drawn = 0
    while num_drawn < max_assignments:
        stage, refused = await _refusal(connection, stage)
        if refused is not None:
            if refused.wants_version and not stage.wants_version:
                await request_version(connection, stage)
            return stage, refused
        num_tasks = await count_tasks_to_draw(connection, stage)
        stage = await _open_explore_step(connection, stage, num_tasks)
        num_drawn += num_tasks
    return stage, AdmissionRefusal(
        f"explore step {stage.explore_step + 1} opens with the next lease"
    )


async def _refusal(connection: Connection, stage: Stage) -> tuple[Stage, AdmissionRefusal | None]:
    """Returns the reason why the next explore step does not open now; None if it does."""
    if stage.takes_clients:
        return stage, AdmissionRefusal(WAITS_FOR_CLIENTS, waits_for=WaitKind.TASKS)
    refused = check_step_order(stage)
    if refused is None:
        stage, refused = await check_queue(connection, stage)
    if refused is None:
        load = await current_load(connection, stage)
        refused = check_credit(stage, load) or check_newer_weights(stage, load)
    return stage, refused


async def _open_explore_step(connection: Connection, stage: Stage, num_tasks: int) -> Stage:
    version = version_to_open(stage)
    stage = dataclasses.replace(stage, explore_step=stage.explore_step + 1, step_version=version)
    stage = await draw_assignments(
        connection,
        stage,
        num_tasks,
        explore_step=stage.explore_step,
        first_position=0,
        refill_round=0,
        required_version=version,
    )
    await open_interval_evaluations(connection, stage)
    await log_progress(connection, stage)
    logger.debug(
        "an explore step is opened",
        extra={
            "stage": stage.key.stage,
            "step": stage.explore_step,
            "tasks": num_tasks,
            "version": version,
        },
    )
    return stage


async def draw_assignments(
    connection: Connection,
    stage: Stage,
    num_tasks: int,
    *,
    explore_step: int,
    first_position: int,
    refill_round: int,
    required_version: int,
) -> Stage:
    """Draws tasks for an explore step; selectors never go back."""
    drawn = await draw_tasks(connection, stage, explore_step, num_tasks, version=required_version)
    num_drawn = await draw_counter_after(connection, stage, num_tasks)
    new = [
        NewAssignment(
            kind=AssignmentKind.TRAIN,
            taskset=task.taskset,
            task_index=task.row,
            explore_step=explore_step,
            position=first_position + i,
            refill_round=refill_round,
            required_version=required_version,
            repeat_times=stage.repeat_times,
            awaits_feedback=task.awaits_feedback,
        )
        for i, task in enumerate(drawn)
    ]
    stage = dataclasses.replace(stage, num_drawn=num_drawn)
    await insert_assignments(connection, stage.key, new)
    await update_stage(
        connection,
        stage.key,
        explore_step=stage.explore_step,
        num_drawn=stage.num_drawn,
        step_version=stage.step_version,
    )
    telemetry.record_drawn_tasks(stage.key, new)
    return stage


async def _why_nothing(connection: Connection, stage: Stage, refused: AdmissionRefusal) -> str:
    if stage.published is None and stage.finished_step is None:
        return "the trainer has not published weights yet"
    evaluation, rollouts = await oldest_open_work(
        connection, stage.key, AssignmentKind.EVAL, AssignmentKind.TRAIN
    )
    if evaluation:
        return f"evaluation of version {evaluation.explore_step}: {_describe(evaluation)}"
    if rollouts:
        published = stage.published or 0
        if rollouts.required_version > published:
            return (
                f"explore step {rollouts.explore_step} needs weights version "
                f"{rollouts.required_version}, this incarnation of the trainer has published "
                f"version {published}"
            )
        return describe_rollouts(rollouts)
    if not refused.is_final:
        return refused.reason
    if not stage.plan.needs_training:
        return f"{refused.reason}; the pipeline still processes the last results"
    return (
        f"{refused.reason}; the trainer has trained step {stage.trained_step} of "
        f"{stage.total_train_steps}, its end opens the last evaluation"
    )
