"""Sessions of clients: held by one explorer, rewarded once, committed as an explore step."""

import json
import uuid
from collections.abc import Sequence
from pathlib import Path

import grpc
import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_sessions import COMMITTED, PROMPT, REJECTED, settle
from tests.unit.config.builders import config, stage, write_rows
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import taskset_pb2
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.api.v1.taskset_pb2_grpc import TasksetServiceStub
from trinity.config.plan.stage_plan import StagePlan
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.session_ids import turn_id

AGE = "UPDATE turn SET created_at = now() - interval '8 days' WHERE turn_id = %s"


def clients_plan(name: str, **changes: object) -> StagePlan:
    plan = config(
        buffer={
            "batch_size": 2,
            "total_steps": 4,
            "explorer_input": {
                "taskset": {
                    "name": name,
                    "path": None,
                    "storage_type": "queue",
                    "default_workflow_type": "clients",
                }
            },
        },
        synchronizer={"sync_offset": 1},
    )
    return stage(plan.model_dump(exclude_unset=True), **changes)


async def begin(buffer: Buffer, /, **changes: object) -> str:
    name = f"calls-{uuid.uuid4()}"
    await buffer.open(clients_plan(name, **changes))
    await buffer.begin()
    await buffer.record(0)
    return name


async def opened(buffer: Buffer, token: str, **given: str) -> pb.OpenSessionResponse:
    request = pb.OpenSessionRequest(key=buffer.pb_key, token=token, **given)
    answer: pb.OpenSessionResponse = await buffer.stub.OpenSession(request, timeout=CALL_SECONDS)
    return answer


def turn_of(
    buffer: Buffer, session: str, token: str, ordinal: int = 0, call: str = ""
) -> SessionTurn:
    buffer.sequence += 1
    own = turn_id(session, "", PROMPT, ordinal)
    return SessionTurn(
        tenant=buffer.key.tenant,
        experiment_id=buffer.key.experiment_id,
        stage=buffer.key.stage,
        session_id=session,
        call_id=call or own,
        lease_token=token,
        id=own,
        prompt_sha256=PROMPT,
        ordinal=ordinal,
        payload=f"payload {ordinal}".encode(),
        sequence=buffer.sequence,
    )


async def reward(
    buffer: Buffer, session: str, turns: Sequence[SessionTurn], number: float, task: str
) -> int:
    request = pb.RewardCallsRequest(
        key=buffer.pb_key,
        session_id=session,
        call_ids=[turn.id for turn in turns],
        reward=number,
        task=task,
    )
    answer = await buffer.stub.RewardCalls(request, timeout=CALL_SECONDS)
    return int(answer.num_ready)


async def commit(buffer: Buffer, session: str) -> pb.CommitSessionResponse:
    request = pb.CommitSessionRequest(key=buffer.pb_key, session_id=session)
    answer: pb.CommitSessionResponse = await buffer.stub.CommitSession(
        request, timeout=CALL_SECONDS
    )
    return answer


async def turns(
    buffer: Buffer, lease: pb.Lease, session: str, wanted: Sequence[str] = ()
) -> list[SessionTurn]:
    request = pb.GetTurnsRequest(
        key=buffer.pb_key, lease=lease, session_id=session, turn_ids=wanted
    )
    stream = buffer.stub.GetTurns(request, timeout=CALL_SECONDS)
    return [turn async for response in stream for turn in response.turns]


async def test_whoever_opened_a_session_last_adds_to_it(buffer: Buffer, shared_dsn: str) -> None:
    await begin(buffer)
    first, second = str(uuid.uuid4()), str(uuid.uuid4())
    made = await opened(buffer, first, name="agent")
    assert (await opened(buffer, first, name="agent")) == made
    assert (await opened(buffer, first, name="other")).session_id != made.session_id
    early = turn_of(buffer, made.session_id, first)
    taken = await opened(buffer, second, secret=made.secret)
    assert taken == made
    late = turn_of(buffer, made.session_id, first, 1)
    own = turn_of(buffer, made.session_id, second)
    told = await settle(buffer, early, late, own)
    assert [report.state for report in told] == [REJECTED, REJECTED, COMMITTED]
    lease = pb.Lease(assignment_id=made.session_id, lease_token=second)
    assert [turn.id for turn in await turns(buffer, lease, made.session_id)] == [own.id]
    with psycopg.connect(shared_dsn) as connection:
        connection.execute("DELETE FROM payload WHERE payload_id = %s", [own.id])
    assert [(turn.id, turn.payload) for turn in await turns(buffer, lease, made.session_id)] == [
        (own.id, b"")
    ]
    lost = pb.Lease(assignment_id=made.session_id, lease_token=first)
    with pytest.raises(grpc.aio.AioRpcError, match="not leased under this token"):
        await turns(buffer, lost, made.session_id)
    for secret in (f"{made.secret[:-1]}x", "x", made.session_id.replace("-", "") * 3):
        with pytest.raises(grpc.aio.AioRpcError, match="open one by its name"):
            await opened(buffer, second, secret=secret)


async def test_a_commit_is_an_explore_step_with_a_run_for_each_call(
    buffer: Buffer, shared_dsn: str
) -> None:
    await begin(buffer)
    token = str(uuid.uuid4())
    session = (await opened(buffer, token, name="agent")).session_id
    waiting = await buffer.lease(wait_seconds=0.1)
    assert "clients have not committed" in waiting.reason
    made = [turn_of(buffer, session, token, i) for i in range(5)]
    made[1].call_id = made[0].id  # another answer to the same call
    assert {told.state for told in await settle(buffer, *made)} == {COMMITTED}
    assert await reward(buffer, session, [made[0]], 1.0, "a") == 2
    assert await reward(buffer, session, [made[0], made[2]], 0.5, "a") == 3
    assert await reward(buffer, session, [made[3]], 2.0, "b") == 4
    committed = await commit(buffer, session)
    numbers = ("explore_step", "num_groups", "num_calls", "num_single")
    assert [getattr(committed, name) for name in numbers] == [1, 2, 3, 1]
    assert not (await commit(buffer, session)).explore_step
    with pytest.raises(grpc.aio.AioRpcError, match=r"is committed with its reward 1,"):
        await reward(buffer, session, [made[0]], 1.0, "a")
    with pytest.raises(grpc.aio.AioRpcError, match="has no answer"):
        await reward(buffer, session, [turn_of(buffer, session, token, 9)], 1.0, "a")
    one, two = (await buffer.lease()).assignments
    task = json.loads(one.task_json)
    assert (task["session"], task["task_id"], list(one.runs)) == (session, "a", [0, 1])
    assert task["calls"] == [
        {"turns": [made[0].id, made[1].id], "reward": 1.0},
        {"turns": [made[2].id], "reward": 0.5},
    ]
    lease = pb.Lease(assignment_id=two.id, lease_token=two.lease_token)
    found = await turns(buffer, lease, session, [made[3].id])
    assert [(turn.id, turn.is_rewarded) for turn in found] == [(made[3].id, True)]
    await reward(buffer, session, [made[4]], 1.0, "late")
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(AGE, [made[4].id])
    assert not (await commit(buffer, session)).explore_step, "its content may be gone"


async def test_evaluations_come_after_as_many_commits_where_weights_come_when_asked_for(
    buffer: Buffer, tmp_path: Path
) -> None:
    held_out = {"name": "held_out", "path": write_rows(tmp_path / "a.jsonl", {"prompt": "a"})}
    await begin(
        buffer,
        synchronizer={"sync_style": "trainer_driven"},
        buffer={"explorer_input": {"eval_tasksets": [held_out]}},
        explorer={"eval_on_startup": False, "eval_interval": 1},
    )
    token = str(uuid.uuid4())
    session = (await opened(buffer, token, name="agent")).session_id
    for number in range(2):
        call = turn_of(buffer, session, token, number)
        await settle(buffer, call)
        await reward(buffer, session, [call], 1.0, str(number))
        assert (await commit(buffer, session)).num_calls == 1
    kinds = [(own.kind, own.required_version) for own in (await buffer.lease()).assignments]
    assert sorted(kinds) == [
        (pb.ASSIGNMENT_KIND_TRAIN, 0),
        (pb.ASSIGNMENT_KIND_TRAIN, 0),
        (pb.ASSIGNMENT_KIND_EVAL, 0),
    ]


async def test_its_queue_is_not_closed_and_other_stages_take_no_clients(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    name = await begin(buffer)
    async with open_channel(process.address) as channel:
        request = taskset_pb2.CloseQueueRequest(tenant=buffer.key.tenant, taskset=name)
        with pytest.raises(grpc.aio.AioRpcError, match="is filled by clients of stage"):
            await TasksetServiceStub(channel).CloseQueue(request, timeout=CALL_SECONDS)
    async with talk_to(process) as other:
        await other.open(rollout_plan(tmp_path))
        with pytest.raises(grpc.aio.AioRpcError, match="takes no calls of clients"):
            await opened(other, str(uuid.uuid4()), name="agent")
