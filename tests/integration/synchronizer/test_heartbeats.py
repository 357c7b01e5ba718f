"""The helper with which processes report themselves, against a real synchronizer."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from tests.integration.synchronizer.conftest import TIMEOUT, Running, running_synchronizer
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.local.addresses import free_port
from trinity.runtime import presence
from trinity.runtime.presence import Heartbeats
from trinity.runtime.rpc.channel import open_channel

ADDRESS = "127.0.0.1:4000"


async def seen(synchronizer: Running, is_wanted: Callable[[pb.Member], bool]) -> pb.Member:
    """Ask for the status until the only member looks as wanted."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
            for member in status.members:
                if is_wanted(member):
                    found: pb.Member = member
                    return found


@pytest.fixture
async def heartbeats(synchronizer: Running) -> AsyncIterator[Heartbeats]:
    async with Heartbeats(
        synchronizer.stub, member_id=str(uuid.uuid4()), role="trainer", address=ADDRESS
    ) as heartbeats:
        yield heartbeats


async def test_a_process_shows_what_it_does_and_uses(
    synchronizer: Running, heartbeats: Heartbeats
) -> None:
    experiment_id = str(uuid.uuid4())
    heartbeats.set_work(experiment_id, "rft")
    heartbeats.set_activity("training step 5")
    heartbeats.set_version(4)
    heartbeats.set_pinned_versions({4, 2})
    member = await seen(synchronizer, lambda m: len(m.pinned_versions) == 2)
    assert (member.role, member.address) == (pb.ROLE_TRAINER, ADDRESS)
    assert (member.experiment_id, member.stage) == (experiment_id, "rft")
    assert (member.activity, member.version) == ("training step 5", 4)
    assert list(member.pinned_versions) == [2, 4]


async def test_a_wait_shows_while_it_lasts(synchronizer: Running, heartbeats: Heartbeats) -> None:
    reason = "batch 5 is not composed"
    with heartbeats.waits.waiting(for_="buffer", reason=reason, deadline_seconds=1000):
        member = await seen(synchronizer, lambda m: len(m.waits) == 1)
    (wait,) = member.waits
    assert (wait.owner, wait.waits_for, wait.reason) == ("trainer", "buffer", reason)
    assert wait.waited_seconds > 0
    assert 1000 - TIMEOUT < wait.deadline_seconds < 1000
    await seen(synchronizer, lambda m: not m.waits)


async def test_a_thread_can_register_a_wait(synchronizer: Running, heartbeats: Heartbeats) -> None:
    wait = await asyncio.to_thread(
        heartbeats.waits.begin, for_="explorer", reason="why", owner="trainer rank 1"
    )
    member = await seen(synchronizer, lambda m: len(m.waits) == 1)
    assert member.waits[0].owner == "trainer rank 1"
    assert member.waits[0].deadline_seconds == 0
    await asyncio.to_thread(heartbeats.waits.end, wait)
    await seen(synchronizer, lambda m: not m.waits)


async def test_a_process_that_ends_says_goodbye(synchronizer: Running) -> None:
    async with Heartbeats(
        synchronizer.stub, member_id=str(uuid.uuid4()), role="explorer", address=ADDRESS
    ):
        await seen(synchronizer, lambda m: m.role == pb.ROLE_EXPLORER)
    status = await synchronizer.stub.GetStatus(pb.GetStatusRequest(), timeout=TIMEOUT)
    assert not status.members


async def test_a_synchronizer_that_comes_later_hears_of_everything(
    synchronizer_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_port()}"
    warned = asyncio.Event()
    monkeypatch.setattr(presence.logger, "warning", lambda *_, **__: warned.set())
    async with open_channel(address) as channel:
        stub = SynchronizerServiceStub(channel)
        async with Heartbeats(
            stub, member_id=str(uuid.uuid4()), role="explorer", address=ADDRESS
        ) as heartbeats:
            heartbeats.set_activity("rolling out")
            async with asyncio.timeout(TIMEOUT):
                await warned.wait()
            async with running_synchronizer(synchronizer_dsn, address) as synchronizer:
                await seen(synchronizer, lambda m: m.activity == "rolling out")
