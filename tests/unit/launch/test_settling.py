"""The results of a run are made of all its events, however late the first of them come."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from tests.unit.launch.test_follow import EVENTS
from tests.unit.progress.builders import empty_view
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.launch.follow import FINISHED, ExperimentFollower
from trinity.run.progress.lines import LineReporter

SILENT_SECONDS = 1.5


def finished(name: str, last_step: int) -> synchronizer_pb2.Stage:
    return synchronizer_pb2.Stage(
        name=name,
        state=synchronizer_pb2.STAGE_STATE_FINISHED,
        final_version=synchronizer_pb2.Version(version=last_step),
    )


class SlowBuffer:
    """Takes its time before the first events, and again before the last ones."""

    async def WatchProgress(
        self, _: buffer_pb2.WatchProgressRequest
    ) -> AsyncIterator[buffer_pb2.WatchProgressResponse]:
        for events in (EVENTS[:4], EVENTS[4:]):
            await asyncio.sleep(SILENT_SECONDS)
            yield buffer_pb2.WatchProgressResponse(events=events)
        await asyncio.Event().wait()


class Over:
    """Says at once that everything is finished."""

    async def WatchExperiment(
        self, _: synchronizer_pb2.WatchExperimentRequest
    ) -> AsyncIterator[synchronizer_pb2.WatchExperimentResponse]:
        stages = [finished("sft", 2), finished("rft", 2)]
        yield synchronizer_pb2.WatchExperimentResponse(
            experiment=synchronizer_pb2.Experiment(id="e", state=FINISHED, stages=stages)
        )


async def test_what_is_finished_is_awaited_until_its_last_step_is_told() -> None:
    follower = ExperimentFollower(
        experiment=synchronizer_pb2.Experiment(id="e"),
        buffer=cast(BufferServiceStub, SlowBuffer()),
        synchronizer=cast(SynchronizerServiceStub, Over()),
        view=empty_view(),
        reporter=LineReporter(lambda _: None),
        on_stage=lambda _: None,
    )
    async with asyncio.timeout(30):
        assert (await follower.until_ended()).state == FINISHED
    assert follower.view.last_event == 9
