"""A follower tells what is new, opens lost streams again, and makes results of all events."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import grpc
import pytest

from tests.unit.config.builders import config
from tests.unit.progress.builders import batch, empty_view, opened, sampled, trained
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.planning import plan_experiment
from trinity.run.launch.follow import (
    FINISHED,
    REFUSED_SECONDS,
    RUNNING,
    ExperimentFollower,
    StreamRetry,
    watched,
)
from trinity.run.monitors.feed import MonitorOutage
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
SILENT_SECONDS = 1.5


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


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def broken(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


REFUSED = broken(grpc.StatusCode.UNAUTHENTICATED)
AWAY = broken(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_is_refused_for_a_minute_is_told_so(clock: Clock) -> None:
    retry = StreamRetry(clock)
    for clock.now in (0.0, REFUSED_SECONDS / 2, REFUSED_SECONDS):
        retry.record_open()
        retry.raise_if_permanent(REFUSED)
    clock.now += 1.0
    retry.record_open()
    with pytest.raises(grpc.aio.AioRpcError):
        retry.raise_if_permanent(REFUSED)


@pytest.mark.parametrize("seconds", [1.0, 10 * REFUSED_SECONDS])
def test_a_silent_stream_that_lasted_ended_with_its_token(clock: Clock, seconds: float) -> None:
    retry = StreamRetry(clock)
    for _ in range(100):
        retry.record_open()
        if seconds < REFUSED_SECONDS:
            retry.record_answer()
        clock.now += seconds
        retry.raise_if_permanent(REFUSED)


def test_an_outage_between_two_refusals_starts_the_minute_anew(clock: Clock) -> None:
    retry = StreamRetry(clock)
    for error in (REFUSED, AWAY, REFUSED):
        retry.record_open()
        retry.raise_if_permanent(error)
        clock.now += REFUSED_SECONDS


def test_other_errors_are_not_waited_out(clock: Clock) -> None:
    retry = StreamRetry(clock)
    retry.record_open()
    with pytest.raises(grpc.aio.AioRpcError):
        retry.raise_if_permanent(broken(grpc.StatusCode.PERMISSION_DENIED))


async def test_a_monitor_that_nobody_feeds_any_more_is_not_away(tmp_path: Path) -> None:
    """As a launcher left it that was killed, before its run went on without a monitor."""
    MonitorOutage(monitor="wandb", reason="no answer", since=1.0).save_outage(tmp_path)
    plan = plan_experiment(config(monitor={"monitor_type": "none"}))
    said: list[str] = []
    reporter = LineReporter(said.append)
    async with watched(plan, "e", cast(BufferServiceStub, None), reporter, tmp_path):
        assert MonitorOutage.load_outage(tmp_path) is None


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
