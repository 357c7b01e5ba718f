"""Feeds progress events to a monitor, and tells other processes while it is unavailable."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn, Self

import grpc

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.config.schema.base import redact_secrets
from trinity.run.monitors.monitor import Monitor
from trinity.run.monitors.points import EventPoints, PointBuilder, with_table
from trinity.run.monitors.preview import PreviewReader
from trinity.run.progress.lines import LineSink
from trinity.runtime.threads import DaemonThreads

logger = logging.getLogger(__name__)


FILE = "away.json"
RETRY_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0
SLOW_SECONDS = 15.0
"""A monitor that takes longer to answer is reported."""
MAX_PENDING = 2000
"""Limit of events read ahead of the monitor; the rest stays with the buffer."""
CATCH_UP_SECONDS = 30.0
"""Time that the end of a run waits for its monitor."""
CLOSE_SECONDS = 20.0
MAX_REASON_LENGTH = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorOutage:
    """A monitor that does not accept data; the run continues without it."""

    monitor: str
    reason: str
    since: float
    """Seconds since 1970."""

    def save_outage(self, directory: Path) -> None:
        """Writes the file, best effort: a full disk may be why the monitor is unavailable."""
        temporary = directory / f"{FILE}.tmp"
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(asdict(self)) + "\n")
            temporary.replace(directory / FILE)

    @classmethod
    def load_outage(cls, directory: Path) -> Self | None:
        """Returns the recorded outage, if any; the file exists only during an outage."""
        try:
            return cls(**json.loads((directory / FILE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    @staticmethod
    def clear_outage(directory: Path) -> None:
        """Removes the file: the monitor is back, or no longer used."""
        with contextlib.suppress(OSError):
            (directory / FILE).unlink(missing_ok=True)


@dataclass(slots=True, kw_only=True)
class MonitorFeed:
    """Reads progress as fast as the monitor accepts it, at most `MAX_PENDING` events ahead.

    feed = MonitorFeed(...)
    task = asyncio.create_task(feed.feed_forever())
    ...
    await feed.catch_up(last_event)  # until the monitor has it, or a timeout
    task.cancel()
    await feed.close_monitor()

    The monitor's calls block in a daemon thread, one at a time: a call that hangs never keeps a
    process from exiting.
    """

    name: str
    monitor: Monitor
    points: PointBuilder
    tenant: str
    experiment_id: str
    buffer: buffer_pb2_grpc.BufferServiceStub
    reporter: LineSink
    directory: Path
    """Directory of the file that says that the monitor is unavailable."""
    previews: PreviewReader | None = None
    """Reads tables of samples, if the monitor gets them."""
    secrets: tuple[str, ...] = ()
    """Texts that no error may show."""
    retry_seconds: float = RETRY_SECONDS
    slow_seconds: float = SLOW_SECONDS
    catch_up_seconds: float = CATCH_UP_SECONDS
    close_seconds: float = CLOSE_SECONDS
    _pending: list[EventPoints] = field(default_factory=list)
    _read: int = 0
    _written: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _outage: MonitorOutage | None = None
    _call: "asyncio.Future[None] | None" = None
    _threads: DaemonThreads = field(
        default_factory=lambda: DaemonThreads(name="monitor", max_threads=1)
    )

    async def feed_forever(self) -> NoReturn:
        """Runs until it is cancelled, and never fails."""
        MonitorOutage.clear_outage(self.directory)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read_forever())
            group.create_task(self._write_forever())
        raise AssertionError("both go on until they are cancelled")

    async def catch_up(self, last_event: int) -> None:
        """Waits until the monitor has everything up to an event, or a timeout."""
        try:
            async with asyncio.timeout(self.catch_up_seconds), self._changed:
                await self._changed.wait_for(lambda: self._written >= last_event)
        except TimeoutError:
            self.reporter.print_line(
                f"the monitor {self.name} did not take the last figures: it has "
                f"{self._written} of {last_event} events"
            )

    async def close_monitor(self) -> None:
        """Lets the monitor write pending data; abandons a call that hangs."""
        try:
            async with asyncio.timeout(self.close_seconds):
                if self._call is not None:
                    await asyncio.gather(self._call, return_exceptions=True)
                await self._threads.run_in_thread(self.monitor.close)
        except TimeoutError:
            self.reporter.print_line(
                f"the monitor {self.name} did not end within {self.close_seconds:.0f} s"
            )
        except Exception as error:
            logger.warning("monitor not closed", extra={"error": self._reason(error)})
        MonitorOutage.clear_outage(self.directory)

    async def _read_forever(self) -> None:
        while True:
            try:
                await self._read_events()
            except grpc.aio.AioRpcError as error:
                logger.debug("progress is read again", extra={"code": error.code().name})
            await asyncio.sleep(self.retry_seconds)

    async def _read_events(self) -> None:
        request = buffer_pb2.WatchProgressRequest(
            tenant=self.tenant, experiment_id=self.experiment_id, after_event=self._read
        )
        async for answer in self.buffer.WatchProgress(request):
            read = [await self._points_of(event) for event in answer.events]
            async with self._changed:
                self._pending += read
                self._read = max((event.number for event in answer.events), default=self._read)
                self._changed.notify_all()
                await self._changed.wait_for(lambda: len(self._pending) < MAX_PENDING)

    async def _points_of(self, event: buffer_pb2.ProgressEvent) -> EventPoints:
        # The table first: an event whose points were made is not read again.
        table = await self.previews.table_of(event) if self.previews is not None else None
        return with_table(self.points.points_of_event(event), table)

    async def _write_forever(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._pending))
                taken, self._pending = self._pending, []
                self._changed.notify_all()
            await self._write_with_retry(taken)
            async with self._changed:
                self._written = taken[-1].event
                self._changed.notify_all()

    async def _write_with_retry(self, taken: list[EventPoints]) -> None:
        points = [point for reading in taken for point in reading.points]
        pause = self.retry_seconds
        while points:
            try:
                await self._call_monitor(lambda: self.monitor.write_points(points))
            except Exception as error:
                logger.debug("monitor did not take figures", exc_info=error)
                self._report_outage(self._reason(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_SECONDS)
            else:
                self._report_recovery()
                return

    async def _call_monitor(self, function: Callable[[], None]) -> None:
        """Makes a call that continues when its awaiter is cancelled: `close` waits for it."""
        self._call = asyncio.ensure_future(self._threads.run_in_thread(function))
        done, _ = await asyncio.wait((self._call,), timeout=self.slow_seconds)
        if not done:
            self._report_outage(f"no answer for {self.slow_seconds:.0f} s")
            await asyncio.wait((self._call,))
        call, self._call = self._call, None
        call.result()

    def _report_outage(self, reason: str) -> None:
        if self._outage is None:
            self.reporter.print_line(
                f"the monitor {self.name} is away ({reason}): training goes on, and it gets its "
                "figures when it is back"
            )
            self._outage = MonitorOutage(monitor=self.name, reason=reason, since=time.time())
            self._outage.save_outage(self.directory)

    def _report_recovery(self) -> None:
        if self._outage is not None:
            lasted = time.time() - self._outage.since
            self._outage = None
            MonitorOutage.clear_outage(self.directory)
            self.reporter.print_line(f"the monitor {self.name} is back after {lasted:.0f} s")

    def _reason(self, error: Exception) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return str(redact_secrets("", text))[:MAX_REASON_LENGTH]
