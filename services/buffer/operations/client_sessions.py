"""Sessions of clients: opened by name or secret, and committed as explore steps.

A client asks, rewards its calls later, and commits. Each group of calls is then a task
of the stage's queue, and its assignment has a run for each call. An explorer leases it like any
other and hands over the stored turns as the samples of its runs.
"""

import hmac
import json
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from services.buffer.domain.stage import AssignmentKind, Stage
from services.buffer.operations.explore_steps import load_queue, open_interval_evaluations
from services.buffer.store.assignments import NewAssignment, assignment_id, insert_assignments
from services.buffer.store.client_sessions import (
    hold_session,
    mark_committed,
    ready_turns,
    reward_calls,
    token_of,
    turns_of_client,
)
from services.buffer.store.database import notify, work_topic
from services.buffer.store.stages import lock_stage, update_stage
from services.buffer.store.tasksets import insert_tasks, update_taskset
from services.buffer.store.turns import StoredTurn
from trinity.errors import NotFound, PreconditionFailed
from trinity.runtime.session_ids import client_session_id, session_secret
from trinity.runtime.sql import Connection
from trinity.types import StageKey

ID_CHARACTERS = 32
"""A client's secret begins with the id of its session, so that any explorer finds it."""
NO_SESSION = "there is no such session: open one by its name"


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A client's session."""

    session_id: str
    secret: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class CommittedCalls:
    """The explore step that was made of a session's calls; 0 if there were none."""

    explore_step: int = 0
    num_groups: int = 0
    num_calls: int = 0
    num_single: int = 0
    """Groups of a single answer."""


Call = Sequence[StoredTurn]
"""The answers to one call of a client."""


async def open_session(
    connection: Connection, key: StageKey, *, name: str, secret: str, token: str
) -> OpenedSession:
    """Gives a session to the explorer with this token.

    Raises: NotFound for a secret of no session, PreconditionFailed for a stage without clients.
    """
    stage = await _lock(connection, key)
    assert stage.session_key is not None, "stages without a key are older than those with clients"
    own_id = client_session_id(key.experiment_id, key.stage, name) if name else _id_in(secret)
    right = f"{own_id.replace('-', '')}{session_secret(stage.session_key, own_id)}"
    if not name and not (
        hmac.compare_digest(secret.encode(), right.encode())
        and await token_of(connection, key, own_id) is not None
    ):
        raise NotFound(NO_SESSION)
    is_new = await hold_session(connection, key, own_id, name, token)
    return OpenedSession(own_id, right, is_new)


def _id_in(secret: str) -> str:
    try:
        return str(uuid.UUID(secret[:ID_CHARACTERS]))
    except ValueError as error:
        raise NotFound(NO_SESSION) from error


async def reward_session(
    connection: Connection,
    key: StageKey,
    own_id: str,
    call_ids: Sequence[str],
    *,
    reward: float,
    task: str,
) -> int:
    """Rewards calls; returns how many answers of the session are ready to be committed.

    Raises: NotFound for calls that the session lacks, PreconditionFailed for committed ones.
    """
    await _lock(connection, key)
    stored = {own.call_id: own for own in await turns_of_client(connection, key, own_id)}
    for call_id in call_ids:
        if call_id not in stored:
            raise NotFound(f"this session has no answer {call_id}: give the `id` of a completion")
        if stored[call_id].run is not None:
            raise PreconditionFailed(
                f"the answer {call_id} is committed with its reward {stored[call_id].reward:g}, "
                "which stays: give feedback before the commit"
            )
    await reward_calls(connection, key, own_id, call_ids, reward=reward, task=task)
    return len(await ready_turns(connection, key, own_id))


async def commit_session(connection: Connection, key: StageKey, own_id: str) -> CommittedCalls:
    """Makes an explore step of the calls that have a reward and are not committed.

    Raises: PreconditionFailed if the stage takes no more.
    """
    stage = await _lock(connection, key)
    groups = _groups(await ready_turns(connection, key, own_id))
    if not groups:
        return CommittedCalls()
    step = stage.explore_step + 1
    first = await _add_tasks(connection, stage, own_id, groups)
    new = [
        NewAssignment(
            kind=AssignmentKind.TRAIN,
            taskset=stage.plan.tasksets[0].name,
            task_index=first + position,
            explore_step=step,
            position=position,
            refill_round=0,
            required_version=stage.published or 0,
            repeat_times=len(calls),
        )
        for position, calls in enumerate(groups.values())
    ]
    await insert_assignments(connection, key, new)
    runs = {
        (assignment_id(key, AssignmentKind.TRAIN, step, position), run): [
            own.turn_id for own in call
        ]
        for position, calls in enumerate(groups.values())
        for run, call in enumerate(calls)
    }
    await mark_committed(connection, key, runs)
    await update_stage(
        connection,
        key,
        explore_step=step,
        total_explore_steps=max(stage.total_explore_steps, step),
        num_drawn=stage.num_drawn + len(groups),
    )
    if stage.published is not None:
        measured = replace(stage, explore_step=step, step_version=stage.published)
        await open_interval_evaluations(connection, measured)
    await notify(connection, work_topic(key))
    num_single = sum(sum(map(len, calls)) == 1 for calls in groups.values())
    return CommittedCalls(step, len(groups), len(runs), num_single)


def _groups(turns: Sequence[StoredTurn]) -> Mapping[str, Sequence[Call]]:
    """Returns calls by their task, in the order of their first answers."""
    calls = defaultdict[tuple[str, str], list[StoredTurn]](list)
    for own in turns:
        calls[own.task or "", own.call_id or ""].append(own)
    groups = defaultdict[str, list[Call]](list)
    for (task, _), call in calls.items():
        groups[task].append(call)
    return groups


async def _add_tasks(
    connection: Connection, stage: Stage, own_id: str, groups: Mapping[str, Sequence[Call]]
) -> int:
    """Adds groups to the queue; returns the row of the first."""
    queue = await load_queue(connection, stage)
    assert queue is not None, "a stage with clients has a queue"
    bodies = [
        json.dumps(
            {
                "session": own_id,
                "task_id": task,
                "calls": [
                    {"turns": [own.turn_id for own in call], "reward": call[0].reward}
                    for call in calls
                ],
            }
        )
        for task, calls in groups.items()
    ]
    tenant, num_rows = stage.key.tenant, queue.num_rows
    await insert_tasks(connection, tenant, queue.taskset_id, num_rows, bodies)
    await update_taskset(
        connection,
        tenant,
        queue.taskset_id,
        num_rows=num_rows + len(bodies),
        num_bytes=queue.num_bytes + sum(map(len, bodies)),
    )
    return num_rows


async def _lock(connection: Connection, key: StageKey) -> Stage:
    """Locks a stage that takes calls of clients.

    Raises: PreconditionFailed for any other.
    """
    stage = await lock_stage(connection, key)
    if not stage.takes_clients:
        raise PreconditionFailed(f"stage {key.stage} takes no calls of clients")
    if not stage.is_open or stage.finished_step is not None:
        raise PreconditionFailed(f"stage {key.stage} has ended: nothing more is trained")
    return stage
