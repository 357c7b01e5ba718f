"""A process that tells about itself ends when it is told to."""

import asyncio
from typing import Any, cast

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
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
