"""A process that tells about itself ends when it is told to."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime import presence
from trinity.runtime.presence import Heartbeats


class Synchronizer:
    """Takes every heartbeat."""

    async def Heartbeat(self, request: pb.HeartbeatRequest, **_: Any) -> pb.HeartbeatResponse:
        return pb.HeartbeatResponse(interval_seconds=60.0)


async def test_a_change_at_the_very_end_does_not_keep_the_heartbeats_going() -> None:
    for num_turns in range(6):  # of the event loop, between the change and the end
        beats = Heartbeats(
            cast(SynchronizerServiceStub, Synchronizer()), member_id="one", role="explorer"
        )
        async with asyncio.timeout(5):
            async with beats:
                await asyncio.sleep(0.25)  # the first one is told, the next one is far away
                beats.set_activity("ending")
                for _ in range(num_turns):
                    await asyncio.sleep(0)


async def test_a_note_follows_what_a_process_does_until_it_is_gone() -> None:
    stub = Synchronizer()
    told: list[str] = []

    async def heartbeat(request: pb.HeartbeatRequest, **_: Any) -> pb.HeartbeatResponse:
        told.append(request.member.activity)
        return pb.HeartbeatResponse(interval_seconds=60.0)

    stub.Heartbeat = heartbeat  # type: ignore[method-assign]
    beats = Heartbeats(cast(SynchronizerServiceStub, stub), member_id="one", role="explorer")
    beats.set_activity("idle")
    beats.set_note("engine over 2 hosts: 2 joined")
    async with beats:
        assert beats.member.activity == "idle; engine over 2 hosts: 2 joined"
        beats.set_activity("exploring")
        assert beats.member.activity == "exploring; engine over 2 hosts: 2 joined"
    assert told[-1] == "gone"


class Forgetful:
    """Takes heartbeats; the answer to the first one is lost."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []

    async def Heartbeat(self, request: pb.HeartbeatRequest, **_: Any) -> pb.HeartbeatResponse:
        self.told.append([wait.number for wait in request.closed_waits])
        if len(self.told) == 1:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()
            )
        return pb.HeartbeatResponse(interval_seconds=0.0)


async def test_a_wait_that_ended_is_told_until_a_heartbeat_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(presence, "CLOSED_WAIT_SECONDS", 0.0)
    stub = Forgetful()
    beats = Heartbeats(cast(SynchronizerServiceStub, stub), member_id="one", role="explorer")
    with beats.waits.waiting(for_="buffer", reason="nothing to lease"):
        pass
    for _ in range(3):
        await beats._beat(1.0)
    assert stub.told == [[1], [1], []]
