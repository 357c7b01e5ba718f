"""A run that goes on tells what is new, and of what was before how far it had come."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import grpc

from tests.unit.progress.builders import batch, empty_view, opened, sampled, trained
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.launch.follow import FINISHED, RUNNING, ExperimentFollower
from trinity.run.progress.lines import LineReporter

EVENTS = [
    opened(1, "sft", 2),
    trained(2, "sft", 1),
    trained(3, "sft", 2),
    opened(4, "rft", 3),
    sampled(5),
    batch(6, "rft", 1, 0.5),
    trained(7, "rft", 1),
    trained(8, "rft", 1, replayed=True),
    trained(9, "rft", 2),
]


class Buffer:
    """Tells all events at once, and then nothing more."""

    async def WatchProgress(
        self, _: buffer_pb2.WatchProgressRequest
    ) -> AsyncIterator[buffer_pb2.WatchProgressResponse]:
        yield buffer_pb2.WatchProgressResponse(events=EVENTS)
        raise grpc.aio.AioRpcError(
            grpc.StatusCode.NOT_FOUND, grpc.aio.Metadata(), grpc.aio.Metadata()
        )


async def followed(started_millis: int) -> tuple[ExperimentFollower, list[str]]:
    lines: list[str] = []
    stub = SynchronizerServiceStub(grpc.aio.insecure_channel("127.0.0.1:1"))
    follower = ExperimentFollower(
        experiment=synchronizer_pb2.Experiment(id="e"),
        buffer=cast(BufferServiceStub, Buffer()),
        synchronizer=stub,
        view=empty_view(),
        reporter=LineReporter(lines.append),
        on_stage=lambda _: None,
        started_millis=started_millis,
    )
    try:
        await follower.until_ended()
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.NOT_FOUND
    return follower, lines


async def test_what_earlier_starts_had_told_is_not_told_again() -> None:
    follower, lines = await followed(started_millis=7500)
    assert lines[0] == "[rft] goes on; it had come to step 1/3"
    assert lines[1].startswith("[rft] step 1/3  replayed from its recorded batch")
    assert not [line for line in lines if "samples before" in line or "[sft]" in line]
    assert list(follower.view.stages["sft"].steps) == [1, 2]
    assert follower.view.last_event == 9


async def test_a_first_start_tells_everything() -> None:
    _, lines = await followed(started_millis=0)
    assert "[rft] samples before training:" in lines
    assert not [line for line in lines if "goes on" in line]


def ended(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


class TokenEnds:
    """Both streams end with their token, and go on when they are opened again."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def _open(self, name: str) -> bool:
        """Whether it is for the first time."""
        self.opened.append(name)
        return self.opened.count(name) == 1

    async def WatchProgress(
        self, request: buffer_pb2.WatchProgressRequest
    ) -> AsyncIterator[buffer_pb2.WatchProgressResponse]:
        if self._open("progress"):
            yield buffer_pb2.WatchProgressResponse(events=EVENTS[:1])
            raise ended(grpc.StatusCode.UNAUTHENTICATED)
        later = [one for one in EVENTS if one.number > request.after_event]
        yield buffer_pb2.WatchProgressResponse(events=later)
        await asyncio.Event().wait()

    async def WatchExperiment(
        self, _: synchronizer_pb2.WatchExperimentRequest
    ) -> AsyncIterator[synchronizer_pb2.WatchExperimentResponse]:
        if self._open("experiment"):
            yield synchronizer_pb2.WatchExperimentResponse(
                experiment=synchronizer_pb2.Experiment(id="e", state=RUNNING)
            )
            raise ended(grpc.StatusCode.UNAUTHENTICATED)
        yield synchronizer_pb2.WatchExperimentResponse(
            experiment=synchronizer_pb2.Experiment(id="e", state=FINISHED)
        )


async def test_streams_are_opened_again_when_their_token_has_ended() -> None:
    streams = TokenEnds()
    follower = ExperimentFollower(
        experiment=synchronizer_pb2.Experiment(id="e"),
        buffer=cast(BufferServiceStub, streams),
        synchronizer=cast(SynchronizerServiceStub, streams),
        view=empty_view(),
        reporter=LineReporter(lambda _: None),
        on_stage=lambda _: None,
    )
    async with asyncio.timeout(30):
        assert (await follower.until_ended()).state == FINISHED
    assert sorted(streams.opened) == ["experiment", "experiment", "progress", "progress"]
    assert follower.view.last_event == 9
