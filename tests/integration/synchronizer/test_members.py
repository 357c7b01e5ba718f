"""Who lives, and who waits for whom."""

from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from services.synchronizer import operations, wire
from services.synchronizer.operations import Operations
from services.synchronizer.store import members as closed_waits_store
from services.synchronizer.store.database import SynchronizerDatabase
from services.synchronizer.store.members import (
    HeartbeatOutcome,
    add_closed_waits,
    delete_member,
    newest_closed_waits,
    recently_heard,
    record_heartbeat,
)
from services.synchronizer.wire import MAX_WAIT_BYTES
from tests.integration.synchronizer.builders import creation, explorer, publication, weights
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.errors import QuotaExceeded
from trinity.runtime.postgres import async_engine
from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES
from trinity.runtime.rpc.quotas import TenantQuota
from trinity.runtime.sql import Connection, transaction

RECORDED, FOREIGN = HeartbeatOutcome.RECORDED, HeartbeatOutcome.FOREIGN
TOO_MANY = HeartbeatOutcome.TOO_MANY


async def beat(synchronizer: Running, member: pb.Member) -> float:
    request = pb.HeartbeatRequest(member=member)
    answer: pb.HeartbeatResponse = await synchronizer.stub.Heartbeat(request, timeout=TIMEOUT)
    return answer.interval_seconds


async def members(synchronizer: Running, experiment_id: str = "") -> list[pb.Member]:
    request = pb.GetStatusRequest(experiment_id=experiment_id)
    return list((await synchronizer.stub.GetStatus(request, timeout=TIMEOUT)).members)


async def test_a_member_is_shown_as_it_described_itself_last(synchronizer: Running) -> None:
    member = explorer(version=3)
    assert await beat(synchronizer, member) == 2.0
    member.activity = "loading version 4"
    member.pinned_versions.extend([3, 4])
    await beat(synchronizer, member)
    (shown,) = await members(synchronizer)
    assert 0 <= shown.silent_seconds < TIMEOUT
    shown.silent_seconds = 0
    assert shown == member


async def test_a_silent_member_is_remembered_for_ten_minutes(
    synchronizer: Running,
    age_members: Callable[[float], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(operations, "MEMBER_CLEANUP_SECONDS", 0.0)
    await beat(synchronizer, explorer())
    age_members(30)
    (shown,) = await members(synchronizer)
    assert 30 <= shown.silent_seconds < 30 + TIMEOUT
    age_members(600)
    assert not await members(synchronizer)
    newcomer = explorer()
    await beat(synchronizer, newcomer)
    age_members(-600)
    assert [member.id for member in await members(synchronizer)] == [newcomer.id]


async def test_a_member_that_says_goodbye_is_removed_at_once(synchronizer: Running) -> None:
    member = explorer()
    await beat(synchronizer, member)
    member.phase = pb.MEMBER_PHASE_GONE
    for _ in range(2):
        await beat(synchronizer, member)
    assert not await members(synchronizer)


async def test_waits_grow_older_between_heartbeats(
    synchronizer: Running, age_members: Callable[[float], None]
) -> None:
    member = explorer()
    member.waits.add(
        owner="explorer",
        waits_for="buffer",
        reason="no assignment can be leased",
        waited_seconds=3,
        deadline_seconds=100,
    )
    await beat(synchronizer, member)
    age_members(20)
    (shown,) = await members(synchronizer)
    (wait,) = shown.waits
    assert (wait.owner, wait.waits_for) == ("explorer", "buffer")
    assert wait.waited_seconds == 3 + shown.silent_seconds
    assert wait.deadline_seconds == 100 - shown.silent_seconds


def closed(number: int, experiment_id: str = "", ago: float = 0.0) -> pb.ClosedWait:
    return pb.ClosedWait(
        number=number,
        owner="explorer",
        waits_for="buffer",
        reason=f"wait {number}",
        waited_seconds=3.5,
        ended_seconds_ago=ago,
        experiment_id=experiment_id,
        stage="warmup",
    )


async def tell(synchronizer: Running, member: pb.Member, *waits: pb.ClosedWait) -> None:
    request = pb.HeartbeatRequest(member=member, closed_waits=waits)
    await synchronizer.stub.Heartbeat(request, timeout=TIMEOUT)


async def closed_waits(
    synchronizer: Running, experiment_id: str = "", num: int = 1_000
) -> list[pb.ClosedWait]:
    request = pb.GetStatusRequest(experiment_id=experiment_id, max_closed_waits=num)
    return list((await synchronizer.stub.GetStatus(request, timeout=TIMEOUT)).closed_waits)


async def test_waits_that_ended_are_kept_once_each_newest_first(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    other = (await synchronizer.created(creation(label="other"))).experiment.id
    member = explorer(experiment_id, "warmup")
    older, newer = closed(1, experiment_id, ago=100.0), closed(2, experiment_id, ago=2.0)
    for _ in range(2):  # the answer to the first heartbeat was lost
        await tell(synchronizer, member, older, newer)
    await tell(synchronizer, explorer(), closed(1, other), closed(2))
    told = await closed_waits(synchronizer, experiment_id)
    assert [wait.reason for wait in told] == ["wait 2", "wait 2", "wait 1"]
    idle, *ours = told
    assert not idle.experiment_id
    assert {wait.member_id for wait in ours} == {member.id}
    assert [round(wait.ended_seconds_ago - 2, -1) for wait in ours] == [0, 100]
    shown = ours[0]
    assert (shown.waited_seconds, shown.stage, shown.address) == (3.5, "warmup", "127.0.0.1:5000")
    assert shown.role == pb.ROLE_EXPLORER
    assert len(await closed_waits(synchronizer, experiment_id, 1)) == 1
    assert not await closed_waits(synchronizer, experiment_id, 0), "the control: none are asked for"


async def test_a_member_that_says_goodbye_leaves_its_waits(synchronizer: Running) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    member = explorer(experiment_id)
    member.phase = pb.MEMBER_PHASE_GONE
    await tell(synchronizer, member, closed(1, experiment_id))
    assert not await members(synchronizer)
    assert [wait.number for wait in await closed_waits(synchronizer, experiment_id)] == [1]


async def test_the_newest_waits_of_an_experiment_push_only_its_own_out(
    synchronizer: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closed_waits_store, "MAX_CLOSED_WAITS", 3)
    experiment_id = (await synchronizer.created()).experiment.id
    quiet = (await synchronizer.created(creation(label="quiet"))).experiment.id
    await tell(synchronizer, explorer(quiet), closed(1, quiet, ago=500.0))
    member = explorer(experiment_id)
    waits = [closed(number, experiment_id, ago=100.0 - number) for number in range(1, 9)]
    await tell(synchronizer, member, *waits[:5])
    await tell(synchronizer, member, *waits[5:])
    told = await closed_waits(synchronizer, experiment_id)
    assert [wait.number for wait in told] == [8, 7, 6]
    assert len(await closed_waits(synchronizer, quiet)) == 1


async def test_waits_for_an_experiment_of_another_tenant_are_not_stored(
    connection: Connection, synchronizer: Running
) -> None:
    made = (await synchronizer.created(creation(tenant="a"))).experiment
    member = wire.member_from_proto(explorer(made.id))
    told = pb.HeartbeatRequest(closed_waits=[closed(1, made.id), closed(2)])
    waits = wire.closed_waits_from_proto(told, member)
    await add_closed_waits(connection, waits, "b")
    experiment_id = waits[0].experiment_id
    [own] = await newest_closed_waits(connection, experiment_id, "", 10)
    assert own.experiment_id is None, "that of the idle member alone"
    assert not await newest_closed_waits(connection, experiment_id, "a", 10)
    await add_closed_waits(connection, waits[:1], "a")
    assert len(await newest_closed_waits(connection, experiment_id, "a", 10)) == 1, "the control"


async def test_the_status_of_an_experiment_shows_its_members_and_idle_ones(
    synchronizer: Running,
) -> None:
    experiment_id = (await synchronizer.created()).experiment.id
    elsewhere = explorer("7e5f6d0e-0f6a-4f55-9a57-111111111111", "rft")
    ours, idle = explorer(experiment_id, "warmup"), explorer()
    for member in (elsewhere, ours, idle):
        await beat(synchronizer, member)
    shown = {member.id for member in await members(synchronizer, experiment_id)}
    assert shown == {ours.id, idle.id}


async def test_large_heartbeats_blind_nobody(synchronizer: Running) -> None:
    """What is refused names its bound; of what is taken, the longest waits are kept."""
    flood = explorer()
    flood.waits.extend(pb.Wait(reason="x" * 3_900, waited_seconds=n) for n in range(900))
    for _ in range(30):
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await beat(synchronizer, flood)
        assert told.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "HeartbeatRequest.member: has" in str(told.value.details())
    for _ in range(30):
        large = explorer()
        large.waits.extend(pb.Wait(reason="x" * 3_900, waited_seconds=n) for n in range(60))
        await beat(synchronizer, large)
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert len(status.members) == 30 and status.num_members_left_out == 0
    assert status.ByteSize() < 30 * (MAX_WAIT_BYTES + 1_000)
    kept = [wait.waited_seconds for wait in status.members[0].waits]
    assert 5 < len(kept) < 10 and min(kept) >= 60 - len(kept)


async def test_large_heartbeats_of_many_leave_a_status_that_any_client_takes(
    synchronizer: Running,
) -> None:
    """The longest wait of each is told, and the quiet one is whole."""
    quiet = explorer()
    quiet.waits.add(owner="explorer", waits_for="buffer", reason="no assignment can be leased")
    await beat(synchronizer, quiet)
    for _ in range(150):
        large = explorer()
        large.waits.extend(pb.Wait(reason="x" * 3_900, waited_seconds=n) for n in range(60))
        await beat(synchronizer, large)
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert status.ByteSize() <= MAX_REQUEST_BYTES and not status.num_members_left_out
    assert len(status.members) == 151
    shortened = [member for member in status.members if member.is_shortened]
    assert len(shortened) == 150
    assert all(max(wait.waited_seconds for wait in one.waits) >= 59 for one in shortened)
    assert [member.waits[0].reason for member in status.members if member.id == quiet.id] == [
        "no assignment can be leased"
    ]


@pytest.fixture
async def connection(synchronizer: Running, synchronizer_dsn: str) -> AsyncIterator[Connection]:
    assert not synchronizer.task.done(), "it makes the tables"
    engine = async_engine(synchronizer_dsn, "synchronizer")
    async with transaction(engine) as open_connection:
        yield open_connection
    await engine.dispose()


async def test_an_idle_members_id_stays_with_its_tenant(connection: Connection) -> None:
    idle = wire.member_from_proto(explorer())
    assert idle.experiment_id is None
    assert await record_heartbeat(connection, idle, "a") is RECORDED
    assert await record_heartbeat(connection, idle, "b") is FOREIGN
    assert await record_heartbeat(connection, idle, "a") is RECORDED
    assert await record_heartbeat(connection, idle) is RECORDED, "a token for all tenants may"
    assert await record_heartbeat(connection, idle, "b") is FOREIGN


async def test_a_tenant_has_so_many_members(connection: Connection) -> None:
    mine = [wire.member_from_proto(explorer()) for _ in range(4)]
    for member in mine[:3]:
        assert await record_heartbeat(connection, member, "a", 3) is RECORDED
    assert await record_heartbeat(connection, mine[3], "a", 3) is TOO_MANY
    assert await record_heartbeat(connection, mine[0], "a", 3) is RECORDED, "a known one goes on"
    assert await record_heartbeat(connection, mine[3], "b", 3) is RECORDED
    await delete_member(connection, mine[0], "b")
    assert await record_heartbeat(connection, mine[0], "b", 3) is FOREIGN, "it is there still"
    await delete_member(connection, mine[0], "a")
    assert (
        await record_heartbeat(connection, wire.member_from_proto(explorer()), "a", 3) is RECORDED
    )


async def test_a_tenant_is_told_of_its_own_idle_members_alone(connection: Connection) -> None:
    mine, other = wire.member_from_proto(explorer()), wire.member_from_proto(explorer())
    await record_heartbeat(connection, mine, "a")
    await record_heartbeat(connection, other, "b")
    assert [member.id for member in await recently_heard(connection, None, "a")] == [mine.id]
    assert {member.tenant for member in await recently_heard(connection, None)} == {"a", "b"}


async def test_the_refusal_of_a_member_names_the_setting(
    synchronizer: Running, synchronizer_dsn: str
) -> None:
    assert not synchronizer.task.done(), "it makes the tables"
    engine = async_engine(synchronizer_dsn, "synchronizer")
    quota = TenantQuota.parse("1, b=2", what="members that report", variable="TENANT_MEMBERS")
    own = Operations(SynchronizerDatabase(engine, engine), quota)
    for tenant, num_taken in (("a", 1), ("b", 2)):
        for _ in range(num_taken):
            assert await own.record_heartbeat(wire.member_from_proto(explorer()), tenant)
        with pytest.raises(
            QuotaExceeded, match=r"members that report, and 1 more .*TENANT_MEMBERS"
        ):
            await own.record_heartbeat(wire.member_from_proto(explorer()), tenant)
    for _ in range(3):
        assert await own.record_heartbeat(wire.member_from_proto(explorer())), "of all tenants"
    await engine.dispose()


async def test_pinned_versions_that_there_are_not_do_not_fill_an_answer(
    synchronizer: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_PINNED_LISTED", 1_000)
    made = await synchronizer.stub.CreateExperiment(creation(), timeout=TIMEOUT)
    experiment_id = made.experiment.id
    first = publication(experiment_id, weights("warmup", 1))
    assert not (await synchronizer.stub.PublishVersion(first, timeout=TIMEOUT)).pinned_versions
    for member in (explorer(version=1), explorer(version=1)):
        member.experiment_id, member.stage = experiment_id, "warmup"
        member.pinned_versions.extend(range(10_000, 10_900))
        await beat(synchronizer, member)
    again = await synchronizer.stub.PublishVersion(first, timeout=TIMEOUT)
    assert list(again.pinned_versions) == [1, *range(10_000, 10_900)], "the control: few are told"
    other = explorer(version=1)
    other.experiment_id, other.stage = experiment_id, "warmup"
    other.pinned_versions.extend(range(20_000, 20_900))
    await beat(synchronizer, other)
    again = await synchronizer.stub.PublishVersion(first, timeout=TIMEOUT)
    assert list(again.pinned_versions) == [1]
