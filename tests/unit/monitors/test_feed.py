"""What feeds a monitor holds nothing up, loses nothing, and says once that the monitor is away."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest

from tests.unit.monitors.builders import EXPERIMENT, RUNS_OF_TASK, SECRET, whole_points
from tests.unit.progress.builders import whole_run
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.run.monitors.feed import CLOSE_SECONDS, SLOW_SECONDS, MonitorFeed, MonitorOutage
from trinity.run.monitors.monitor import Monitor
from trinity.run.monitors.points import MetricPoint, PointBuilder

PATIENCE_SECONDS = 60.0
LAST_EVENT = len(whole_run())


class Buffer(buffer_pb2_grpc.BufferServiceServicer):
    """Tells a whole run, and cuts the stream the first time."""

    def __init__(self) -> None:
        self.asked_after: list[int] = []

    async def WatchProgress(
        self, request: buffer_pb2.WatchProgressRequest, context: object
    ) -> AsyncIterator[buffer_pb2.WatchProgressResponse]:
        self.asked_after.append(request.after_event)
        left = [event for event in whole_run() if event.number > request.after_event]
        is_first = len(self.asked_after) == 1
        for event in left[:5] if is_first else left:
            yield buffer_pb2.WatchProgressResponse(events=[event])
        if not is_first:
            await asyncio.Event().wait()


@dataclass(slots=True)
class Lines:
    """What a person is told."""

    said: list[str] = field(default_factory=list)

    def print_line(self, text: str) -> None:
        self.said.append(text)


@dataclass(slots=True)
class Recording:
    """Takes what it is given, after it has refused a few times."""

    refusals: int = 0
    gate: threading.Event | None = None
    points: list[MetricPoint] = field(default_factory=list)
    is_closed: bool = False
    was_asked: bool = False

    def write_points(self, points: Sequence[MetricPoint]) -> None:
        self.was_asked = True
        if self.gate is not None:
            self.gate.wait(PATIENCE_SECONDS)
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError(f"refused for http://me:{SECRET}-too@there, key {SECRET}")
        self.points += points

    def close(self) -> None:
        self.is_closed = True


@contextlib.asynccontextmanager
async def fed(
    directory: Path,
    monitor: Monitor,
    lines: Lines,
    *,
    slow_seconds: float = SLOW_SECONDS,
    catch_up_seconds: float = PATIENCE_SECONDS,
    close_seconds: float = CLOSE_SECONDS,
) -> AsyncIterator[MonitorFeed]:
    server = grpc.aio.server()
    buffer_pb2_grpc.add_BufferServiceServicer_to_server(Buffer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        feed = MonitorFeed(
            name="recording",
            monitor=monitor,
            points=PointBuilder(RUNS_OF_TASK),
            tenant="default",
            experiment_id=EXPERIMENT,
            buffer=buffer_pb2_grpc.BufferServiceStub(channel),
            reporter=lines,
            directory=directory,
            secrets=(SECRET,),
            retry_seconds=0.01,
            slow_seconds=slow_seconds,
            catch_up_seconds=catch_up_seconds,
            close_seconds=close_seconds,
        )
        task = asyncio.create_task(feed.feed_forever())
        try:
            yield feed
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            try:
                await feed.close_monitor()
            finally:
                await server.stop(None)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so():  # noqa: ASYNC110  # what is waited for is a file, or in a thread
            await asyncio.sleep(0.01)


async def test_all_figures_arrive_once_though_the_stream_breaks(tmp_path: Path) -> None:
    monitor, lines = Recording(), Lines()
    async with fed(tmp_path, monitor, lines) as feed:
        await feed.catch_up(LAST_EVENT)
    assert monitor.points == whole_points()
    assert monitor.is_closed
    assert lines.said == []


async def test_a_monitor_that_is_away_is_told_of_once_and_gets_everything_later(
    tmp_path: Path,
) -> None:
    monitor, lines = Recording(refusals=5), Lines()
    async with fed(tmp_path, monitor, lines) as feed:
        await feed.catch_up(LAST_EVENT)
    assert monitor.points == whole_points()
    away, back = lines.said
    assert "the monitor recording is away" in away
    assert "training goes on" in away
    assert "is back after" in back
    assert SECRET not in away


async def test_status_can_say_that_a_monitor_does_not_answer(tmp_path: Path) -> None:
    gate = threading.Event()
    monitor, lines = Recording(gate=gate), Lines()
    async with fed(tmp_path, monitor, lines, slow_seconds=0.05) as feed:
        await until(lambda: MonitorOutage.load_outage(tmp_path) is not None)
        absence = MonitorOutage.load_outage(tmp_path)
        assert absence is not None
        assert "no answer" in absence.reason
        gate.set()
        await feed.catch_up(LAST_EVENT)
        assert MonitorOutage.load_outage(tmp_path) is None
    assert monitor.points == whole_points()


async def test_a_run_ends_without_a_monitor_that_hangs(tmp_path: Path) -> None:
    gate = threading.Event()
    monitor, lines = Recording(gate=gate), Lines()
    async with (
        asyncio.timeout(PATIENCE_SECONDS / 2),
        fed(tmp_path, monitor, lines, catch_up_seconds=0.05, close_seconds=0.05) as feed,
    ):
        await until(lambda: monitor.was_asked)
        await feed.catch_up(LAST_EVENT)
    gate.set()
    assert any("did not take the last figures" in line for line in lines.said)
    assert any("did not end" in line for line in lines.said)
    assert not monitor.is_closed


async def test_a_disk_that_takes_no_note_of_it_keeps_no_figures_back(tmp_path: Path) -> None:
    """What fills the disk of a monitor's files fills that of the note, too."""
    no_folder = tmp_path / "file"
    no_folder.touch()
    monitor, lines = Recording(refusals=2), Lines()
    async with fed(no_folder, monitor, lines, catch_up_seconds=5.0) as feed:
        await feed.catch_up(LAST_EVENT)
    assert monitor.points == whole_points()
    assert monitor.is_closed
    assert ["is away" in lines.said[0], "is back after" in lines.said[1]] == [True, True]


@pytest.mark.parametrize("text", ["", "no json", '{"monitor": 1, "what": 2}'])
def test_a_broken_file_means_that_nobody_is_away(tmp_path: Path, text: str) -> None:
    (tmp_path / "away.json").write_text(text)
    assert MonitorOutage.load_outage(tmp_path) is None
