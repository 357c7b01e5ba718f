"""Follows an experiment to its end: progress events, stage changes, and a monitor's feed."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import grpc

from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc, synchronizer_pb2, synchronizer_pb2_grpc
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.base import is_secret
from trinity.run.monitors.factory import make_monitor
from trinity.run.monitors.feed import MonitorFeed, MonitorOutage
from trinity.run.monitors.points import PointBuilder, runs_of_task
from trinity.run.monitors.preview import preview_reader
from trinity.run.progress.lines import LineSink
from trinity.run.progress.reporter import Reporter
from trinity.run.progress.view import RunView

logger = logging.getLogger(__name__)


# Codes that only mean that a service is being restarted.
PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
REFUSED_SECONDS = 60.0
"""Time that a file may hold a refused token before a new one is there."""
RETRY_SECONDS = 0.5
SETTLE_SECONDS = 30.0
"""Time that the events of an ended experiment may take to arrive."""
RUNNING = synchronizer_pb2.EXPERIMENT_STATE_RUNNING
FINISHED = synchronizer_pb2.EXPERIMENT_STATE_FINISHED


@dataclass(slots=True)
class StreamRetry:
    """Tolerates outages, and the expiry of the token that a stream was opened with.

    The file may hold a new token by then. The stream fails only after the token was refused at
    each attempt for a minute.

    retry.record_open()
    try:
        async for answer in stream: retry.record_answer()
    except grpc.aio.AioRpcError as error:
        retry.raise_if_permanent(error)
    """

    clock: Callable[[], float] = time.monotonic
    _opened_at: float = 0.0
    _got_answer: bool = False
    _refused_since: float | None = None

    def record_open(self) -> None:
        """Records that a stream is opened now."""
        self._opened_at, self._got_answer = self.clock(), False

    def record_answer(self) -> None:
        """Records an answer: the token was accepted."""
        self._got_answer, self._refused_since = True, None

    def raise_if_permanent(self, error: grpc.aio.AioRpcError) -> None:
        """Returns if the stream should be opened again.

        Raises: the error, if opening it again would not help.
        """
        if error.code() in PASSING:
            self._refused_since = None
            return
        if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
            raise error
        now = self.clock()
        if self._got_answer or now - self._opened_at > REFUSED_SECONDS:
            self._refused_since = None  # it was open, so this is the end of its token
            return
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since > REFUSED_SECONDS:
            raise error


@dataclass(slots=True, kw_only=True)
class ExperimentFollower:
    """Feeds a view and a reporter from an experiment's streams, across restarts.

    A stream whose token expired is reopened with the token that the file then holds.
    """

    experiment: synchronizer_pb2.Experiment
    buffer: buffer_pb2_grpc.BufferServiceStub
    synchronizer: synchronizer_pb2_grpc.SynchronizerServiceStub
    view: RunView
    reporter: Reporter
    on_stage: Callable[[str], None]
    """Called with the name of each stage when it is seen running."""
    started_millis: int = 0
    """Events before this belong to earlier starts: they update the view but are not reported."""
    _unreported_stages: set[str] = field(default_factory=set)
    """Stages with such events, until their earlier progress is reported."""
    _reported: set[tuple[str, int]] = field(default_factory=set)

    async def until_ended(self) -> synchronizer_pb2.Experiment:
        """Follows until the experiment has ended and its events are applied; returns it."""
        events = asyncio.create_task(self._read_events_again())
        ending = asyncio.create_task(self._until_not_running())
        try:
            await asyncio.wait((events, ending), return_when=asyncio.FIRST_COMPLETED)
            if events.done():
                events.result()
            ended = ending.result()
            await self._drain_events()
            return ended
        finally:
            for task in (events, ending):
                task.cancel()
            await asyncio.gather(events, ending, return_exceptions=True)

    async def _until_not_running(self) -> synchronizer_pb2.Experiment:
        request = synchronizer_pb2.WatchExperimentRequest(experiment_id=self.experiment.id)
        retry = StreamRetry()
        while True:
            retry.record_open()
            try:
                async for answer in self.synchronizer.WatchExperiment(request):
                    retry.record_answer()
                    self._report_stages(answer.experiment)
                    if self.experiment.state != RUNNING:
                        return self.experiment
            except grpc.aio.AioRpcError as error:
                retry.raise_if_permanent(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _report_stages(self, now: synchronizer_pb2.Experiment) -> None:
        finished = synchronizer_pb2.STAGE_STATE_FINISHED
        before = {stage.name for stage in self.experiment.stages if stage.state == finished}
        for stage in now.stages:
            if stage.name in before or (stage.name, stage.state) in self._reported:
                continue
            self._reported.add((stage.name, stage.state))
            if stage.state == synchronizer_pb2.STAGE_STATE_RUNNING:
                self.on_stage(stage.name)
                self.reporter.print_line(f"[{stage.name}] started")
            if stage.state == finished:
                self.reporter.print_line(f"[{stage.name}] finished")
        self.experiment = now

    async def _read_events_again(self) -> None:
        """Runs until cancelled; errors other than passing outages are raised, and end the run."""
        retry = StreamRetry()
        while True:
            retry.record_open()
            try:
                await self._read_events(retry)
            except grpc.aio.AioRpcError as error:
                retry.raise_if_permanent(error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_events(self, retry: StreamRetry) -> None:
        request = buffer_pb2.WatchProgressRequest(
            tenant=self.experiment.tenant,
            experiment_id=self.experiment.id,
            after_event=self.view.last_event,
        )
        async for answer in self.buffer.WatchProgress(request):
            retry.record_answer()
            for event in answer.events:
                self._apply_event(event)
            self.reporter.refresh(self.view)

    def _apply_event(self, event: buffer_pb2.ProgressEvent) -> None:
        if event.unix_millis < self.started_millis:
            self.view.apply(event)
            self._unreported_stages.add(event.stage)
            return
        if event.stage in self._unreported_stages:
            self._unreported_stages.remove(event.stage)
            self._report_earlier_progress(event.stage)
        self.view.apply(event)
        self.reporter.event(self.view, event)

    def _report_earlier_progress(self, stage_name: str) -> None:
        """Reports how far a stage had come before this start."""
        stage = self.view.stages.get(stage_name)
        if stage is not None and stage.last_step:
            steps = f"step {stage.last_step}/{stage.total_steps or '?'}"
            self.reporter.print_line(f"[{stage_name}] goes on; it had come to {steps}")

    async def _drain_events(self) -> None:
        """Waits until finished stages are shown and no events arrive: these may lag the end."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SETTLE_SECONDS
        seen = -1
        while loop.time() < deadline and not (seen == self.view.last_event and self._is_complete()):
            seen = self.view.last_event
            await asyncio.sleep(RETRY_SECONDS)

    def _is_complete(self) -> bool:
        """Returns true when the view has each finished stage's opening and last step."""
        finished = synchronizer_pb2.STAGE_STATE_FINISHED
        return all(
            self._is_stage_complete(stage)
            for stage in self.experiment.stages
            if stage.state == finished and stage.name in self.view.stages
        )

    def _is_stage_complete(self, stage: synchronizer_pb2.Stage) -> bool:
        seen = self.view.stages[stage.name]
        if seen.mode == "bench":  # it ends with the newest weights, and trains no step
            return seen.opened_millis > 0
        return seen.opened_millis > 0 and seen.last_step >= stage.final_version.version


class MonitorWatcher(Protocol):
    """A receiver of the number of the last event."""

    async def catch_up(self, last_event: int) -> None:
        """Waits until everything up to an event is shown, or a timeout."""


class NullWatcher:
    """Stands in when there is no monitor."""

    async def catch_up(self, last_event: int) -> None:
        """Returns at once, as there is no monitor to wait for."""


@contextlib.asynccontextmanager
async def watched(
    plan: ExperimentPlan,
    experiment_id: str,
    buffer: buffer_pb2_grpc.BufferServiceStub,
    reporter: LineSink,
    directory: Path,
    *,
    queries: QueryServiceStub | None = None,
) -> AsyncIterator[MonitorWatcher]:
    """Feeds the plan's monitor while the block runs, then shuts it down gracefully.

    Without `queries` it gets no tables of samples.
    """
    monitor = make_monitor(plan, experiment_id, directory)
    if monitor is None:
        MonitorOutage.clear_outage(directory)
        yield NullWatcher()
        return
    config = plan.stages[0].config.monitor
    feed = MonitorFeed(
        name=config.monitor_type,
        monitor=monitor,
        points=PointBuilder(runs_of_task(plan), is_detailed=config.detailed_stats),
        tenant=plan.tenant,
        experiment_id=experiment_id,
        buffer=buffer,
        reporter=reporter,
        directory=directory,
        previews=preview_reader(plan, experiment_id, queries, reporter.print_line),
        secrets=tuple(
            str(value) for name, value in config.monitor_args.items() if is_secret(name) and value
        ),
    )
    feeding = asyncio.create_task(feed.feed_forever())
    try:
        yield feed
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await feed.close_monitor()
