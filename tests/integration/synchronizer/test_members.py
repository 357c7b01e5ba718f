"""Who lives, and who waits for whom."""

from collections.abc import Callable

import pytest

from services.synchronizer import operations
from tests.integration.synchronizer.builders import explorer
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1 import synchronizer_pb2 as pb


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
    member.activity = "gone"
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
