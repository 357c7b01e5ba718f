"""Runs one experiment on a local stack: its phases, its interruption and its results."""

import asyncio
import contextlib
import json
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeAlias, TypeVar

import grpc

from trinity.api.v1 import (
    buffer_pb2_grpc,
    query_pb2_grpc,
    synchronizer_pb2,
    synchronizer_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
)
from trinity.config.checks.runtime import ANOTHER_RUN
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.experiment import LogConfig
from trinity.errors import RunFailed
from trinity.run.launch.follow import FINISHED, ExperimentFollower, watched
from trinity.run.launch.machine import claimed_gpus, share_gpus, share_processors
from trinity.run.launch.messages import report_stalls, report_startup
from trinity.run.launch.resume import cancel_stale_experiments, store_plan
from trinity.run.launch.spread import SpreadRun
from trinity.run.local.addresses import ServiceAddresses, write_stack_directory
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import EventKind
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.stack import LocalStack
from trinity.run.monitors.factory import MONITOR_FOLDER
from trinity.run.progress.curves import draw_curves
from trinity.run.progress.lines import LineSink
from trinity.run.progress.reporter import Reporter
from trinity.run.progress.summary import SUMMARY_FILE, RunSummary, summarize, write_summary
from trinity.run.progress.view import RunView
from trinity.runtime.host_port import own_address
from trinity.runtime.loops import LoopKeeper
from trinity.runtime.owned_places import claim_folder
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.limits import CALL_SECONDS

logger = logging.getLogger(__name__)


TOTAL = "total"
SECONDS_FILE = "seconds.json"
SAVE_SECONDS = 10.0
"""The most that a killed launcher forgets."""
ValueT = TypeVar("ValueT")
NUMBERS = (signal.SIGINT, signal.SIGTERM)
SynchronizerStub: TypeAlias = synchronizer_pb2_grpc.SynchronizerServiceStub
CANCEL_SECONDS = 3.0
SAY_SECONDS = 0.5
SAVING = "the trainer ends its step and saves a checkpoint; Ctrl-C again skips that"


class PhaseTimer:
    """Seconds by phase, of this start and of earlier ones in the run's directory.

    phases = PhaseTimer("start")
    phases.begin("rft")
    phases.seconds()  # {"start": 4.1, "rft": 0.2}; a repeated phase adds up
    """

    def __init__(self, first: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current = first
        self._since = clock()
        self._passed: dict[str, float] = {}
        self._before: dict[str, float] | None = None

    def begin(self, name: str) -> None:
        """Ends the current phase and starts another."""
        now = self._clock()
        self._passed[self._current] = self._passed.get(self._current, 0.0) + now - self._since
        self._current, self._since = name, now

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of all phases of this start so far."""
        self.begin(self._current)
        return dict(self._passed)

    def load_earlier(self, job_dir: Path) -> None:
        """Reads the earlier starts; call it when no other launcher works in the directory."""
        try:
            kept = json.loads((job_dir / SECONDS_FILE).read_bytes())
            self._before = {str(name): float(value) for name, value in kept.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            self._before = {}  # a first start, or a damaged file: figures must not stop a run

    def save(self, job_dir: Path) -> None:
        """Writes the phases for the next start; has no effect until `load_earlier` was called."""
        if self._before is None:
            return
        path = job_dir / SECONDS_FILE
        temporary = path.with_suffix(".tmp")
        with contextlib.suppress(OSError):  # a full disk is reported where it matters
            job_dir.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(added(self._before, self.seconds())))
            temporary.replace(path)

    async def save_periodically(self, job_dir: Path) -> NoReturn:
        """Writes the phases periodically; never returns."""
        while True:
            self.save(job_dir)
            await asyncio.sleep(SAVE_SECONDS)

    def of_all_starts(self) -> dict[str, float]:
        """Returns the rounded phases of all starts, and their `total`."""
        summed = added(self._before or {}, self.seconds())
        rounded = {name: round(value, 2) for name, value in summed.items()}
        return {**rounded, TOTAL: round(sum(rounded.values()), 2)}


def added(before: Mapping[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """Adds phase by phase, in the order in which they first came."""
    return {name: before.get(name, 0.0) + now.get(name, 0.0) for name in {**before, **now}}


class RunInterrupted(Exception):
    """The user pressed Ctrl-C."""


class GracefulShutdown:
    """Turns the first signal into a cancellation; a shutdown in progress is never cut short, but
    for the work that `unless_pressed_again` was given.

    Every signal is answered with a line at once: a shutdown takes seconds, and silence invites a
    kill.

        stop = GracefulShutdown(reporter)
        await stop.guard(work())   # raises RunInterrupted after work() has shut down
    """

    def __init__(self, reporter: LineSink) -> None:
        self._reporter = reporter
        self._is_stopping = False
        self._skippable: asyncio.Future[None] | None = None

    async def unless_pressed_again(self, work: Awaitable[None]) -> None:
        """Awaits work of the shutdown that a further signal cancels."""
        self._skippable = asyncio.ensure_future(work)
        await asyncio.wait({self._skippable})
        skippable, self._skippable = self._skippable, None
        if not skippable.cancelled():
            skippable.result()

    def mark_stopping(self) -> None:
        """Marks that the work is stopping by itself: it has finished, or failed."""
        self._is_stopping = True

    async def guard(self, work: Awaitable[ValueT]) -> ValueT:
        """Awaits the work.

        Raises: RunInterrupted when a signal has ended it.
        """
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        numbers = _handled_signals()
        for number in numbers:
            loop.add_signal_handler(number, self._signalled, task)
        try:
            return await task
        except asyncio.CancelledError:
            raise RunInterrupted from None
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _signalled(self, task: "asyncio.Future[ValueT]") -> None:
        if self._skippable is not None:
            self._skippable.cancel()
            self._reporter.print_line("stopping at once: the step in hand is not saved")
            return
        if self._is_stopping:
            self._reporter.print_line(
                "already stopping: what runs is ended in order, wait a moment"
            )
            return
        self._is_stopping = True
        task.cancel()
        self._reporter.print_line("stopping in order")  # fails if the terminal is closed


def _handled_signals() -> tuple[signal.Signals, ...]:
    """Returns the handled signals; SIGHUP is included unless `nohup` has ignored it."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return NUMBERS
    return (*NUMBERS, signal.SIGHUP)


@dataclass(slots=True, kw_only=True)
class LocalRun:
    """One start of an experiment on this machine."""

    plan: ExperimentPlan
    reporter: Reporter
    home: Path | None = None
    """The directory of the stack, if it is not the plan's own."""
    services: Callable[[StackContext], list[ProcessWithProbe]] = service_processes
    complete: Callable[[SynchronizerStub, ExperimentPlan], Awaitable[ExperimentPlan]] | None = None
    """Adds to the plan what only the running stack knows."""
    secure: bool = False
    """Use certificates and tokens on loopback too."""
    spread: SpreadRun | None = None
    """Where its parts are if it is on several machines."""
    _started_millis: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    _phases: PhaseTimer = field(default_factory=lambda: PhaseTimer("start"))
    _stop: GracefulShutdown = field(init=False)

    def __post_init__(self) -> None:
        self._stop = GracefulShutdown(self.reporter)

    async def run_to_end(self) -> RunSummary:
        """Runs to the end.

        Raises: RunFailed with the reason and the log to read; RunInterrupted after a graceful
        shutdown.
        """
        view = RunView.from_plan(self.plan)
        ended = await self._stop.guard(self._follow(view))
        self._phases.begin("results")
        return self._write_results(view, ended)

    async def _follow(self, view: RunView) -> synchronizer_pb2.Experiment:
        try:
            async with self._stack() as stack:
                return await self._run_on_stack(stack, view)
        finally:
            self._phases.save(self.plan.job_path)

    @property
    def _log(self) -> LogConfig:
        return self.plan.stages[0].config.log

    @contextlib.asynccontextmanager
    async def _stack(self) -> AsyncIterator[LocalStack]:
        for folder in sorted({self._home, self.plan.job_path}):  # parents come first
            claim_folder(folder, ANOTHER_RUN)
        self.reporter.print_line("starting the broker, the database and the services")
        environment = share_processors(self.plan)
        services, hosts = self.services, None
        if self.spread is None:
            environment = {**environment, **share_gpus(self.plan)}
        else:
            services, hosts = self.spread.services(services), self.spread.hosts
        async with LocalStack(
            job_dir=self._home,
            log_level=self._log.level,
            log_folder=own_address() if self._log.group_by_node else "",
            environment=environment,
            services=services,
            secure=self.secure or self.spread is not None,
            hosts=hosts,
            tenant=self.plan.tenant,
            gpus=claimed_gpus(self.plan),
        ) as stack:
            self._phases.load_earlier(self.plan.job_path)
            seconds = self._phases.seconds()["start"]
            self.reporter.print_line(f"all services answer after {seconds:.1f} s")
            try:
                yield stack
            finally:
                self._stop.mark_stopping()
                self._phases.begin("stop")
                self.reporter.print_line("stopping the services")

    async def _run_on_stack(self, stack: LocalStack, view: RunView) -> synchronizer_pb2.Experiment:
        addresses = stack.addresses
        async with (
            open_channel(addresses.synchronizer, addresses.security) as to_synchronizer,
            open_channel(addresses.buffer, addresses.security) as to_buffer,
        ):
            synchronizer = synchronizer_pb2_grpc.SynchronizerServiceStub(to_synchronizer)
            buffer = buffer_pb2_grpc.BufferServiceStub(to_buffer)
            experiment = await self._create(synchronizer, is_alone=stack.owns_database)
            follower = ExperimentFollower(
                experiment=experiment,
                buffer=buffer,
                synchronizer=synchronizer,
                view=view,
                reporter=self.reporter,
                on_stage=self._phases.begin,
                started_millis=self._started_millis,
            )
            async with (
                watched(
                    self.plan,
                    experiment.id,
                    buffer,
                    self.reporter,
                    self.plan.job_path / MONITOR_FOLDER,
                    queries=query_pb2_grpc.QueryServiceStub(to_buffer),
                ) as monitor,
                self._cancel_on_interrupt(synchronizer, experiment, addresses),
            ):
                ended = await self._first_completed(
                    follower.until_ended(),
                    self._until_stack_fails(stack),
                    *self._beside(synchronizer, view),
                )
                await monitor.catch_up(view.last_event)
                return ended

    def _beside(
        self, synchronizer: SynchronizerStub, view: RunView
    ) -> Iterator[Coroutine[None, None, NoReturn]]:
        """Yields the loops that watch the run; only a stuck run makes one of them end it."""
        waits = WaitRegistry(owner="launcher", on_change=lambda: None)
        keeper = LoopKeeper(waits=waits, ends_with=(RunFailed,))
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "startup": lambda: report_startup(synchronizer, self.reporter),
            "stalls": lambda: report_stalls(self._home, view, self.reporter, self._sync_timeout()),
            "seconds": lambda: self._phases.save_periodically(self.plan.job_path),
        }

        async def keep(name: str) -> NoReturn:
            await keeper.keep_running(name, loops[name])
            raise AssertionError(f"{name} has no end")

        yield from map(keep, loops)

    @property
    def _home(self) -> Path:
        return self.home or self.plan.job_path

    async def _create(
        self, synchronizer: SynchronizerStub, *, is_alone: bool
    ) -> synchronizer_pb2.Experiment:
        if self.complete is not None:
            self.plan.job_path.mkdir(parents=True, exist_ok=True)
            self.plan = await self.complete(synchronizer, self.plan)
        # A finished run that goes on is not finished any more, also if this launcher dies now.
        (self.plan.job_path / SUMMARY_FILE).unlink(missing_ok=True)
        store_plan(self.plan)
        write_stack_directory(self.plan.job_path, self._home)
        if is_alone:
            for label in await cancel_stale_experiments(synchronizer, self.plan):
                self.reporter.print_line(
                    f"{label} was left running: cancelled until it is started again"
                )
        answer: synchronizer_pb2.CreateExperimentResponse = await synchronizer.CreateExperiment(
            synchronizer_pb2.CreateExperimentRequest(
                tenant=self.plan.tenant,
                label=self.plan.label,
                plan_json=self.plan.model_dump_json(),
            ),
            timeout=CALL_SECONDS,
            wait_for_ready=True,
        )
        for stage in answer.experiment.stages:
            if stage.state == synchronizer_pb2.STAGE_STATE_FINISHED:
                self.reporter.print_line(f"[{stage.name}] finished before, skipped")
        return answer.experiment

    @contextlib.asynccontextmanager
    async def _cancel_on_interrupt(
        self,
        synchronizer: SynchronizerStub,
        experiment: synchronizer_pb2.Experiment,
        addresses: ServiceAddresses,
    ) -> AsyncIterator[None]:
        """Has the step in hand saved, and tells the services why they are about to stop; without an
        answer they stop as well."""
        try:
            yield
        except asyncio.CancelledError:
            await self._stop.unless_pressed_again(self._save_step(experiment, addresses))
            request = synchronizer_pb2.CancelExperimentRequest(
                experiment_id=experiment.id, reason="stopped by the user"
            )
            with contextlib.suppress(grpc.aio.AioRpcError):
                await synchronizer.CancelExperiment(request, timeout=CANCEL_SECONDS)
            raise

    async def _save_step(
        self, experiment: synchronizer_pb2.Experiment, addresses: ServiceAddresses
    ) -> None:
        """Makes the trainer finish and save its step, so that a resumed run does not repeat it."""
        if not any(stage.needs_training for stage in self.plan.stages):
            return
        request = trainer_pb2.StopTrainingRequest(
            tenant=experiment.tenant, experiment_id=experiment.id
        )
        async with open_channel(addresses.trainer, addresses.security) as channel:
            stub = trainer_pb2_grpc.TrainerServiceStub(channel)
            loop = asyncio.get_running_loop()
            told = loop.call_later(SAY_SECONDS, self.reporter.print_line, SAVING)
            try:
                answer = await stub.StopTraining(request)
            except grpc.aio.AioRpcError as error:
                logger.info("the step in hand is not saved", extra={"reason": error.details()})
                return
            finally:
                told.cancel()
        if answer.saved:
            self.reporter.print_line(f"step {answer.step} is saved as a checkpoint")

    async def _until_stack_fails(self, stack: LocalStack) -> synchronizer_pb2.Experiment:
        async for event in stack.events():
            if event.kind is EventKind.RESTARTED:
                self.reporter.print_line(f"restarted {event.process}: {event.reason}")
            if event.kind is EventKind.FAILED:
                raise RunFailed(f"{event.process}: {event.reason}; see {event.log_file}")
        raise RunFailed(f"the supervisor ended; see {self._home / 'log'}")

    async def _first_completed(self, *awaitables: Awaitable[ValueT]) -> ValueT:
        """Returns the first result; the others are cancelled."""
        tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sync_timeout(self) -> float:
        return max(stage.config.synchronizer.sync_timeout for stage in self.plan.stages)

    def _write_results(self, view: RunView, ended: synchronizer_pb2.Experiment) -> RunSummary:
        finished = ended.state == FINISHED
        draw_curves(view, self.plan.job_path / "curves.png", self.plan.label)
        summary = summarize(
            view,
            label=self.plan.label,
            state="finished" if finished else "failed",
            reason=ended.reason,
            starts=ended.start_count,
            seconds=self._phases.of_all_starts(),
        )
        self._phases.save(self.plan.job_path)
        write_summary(summary, self.plan.job_path / SUMMARY_FILE)
        if not finished:
            raise RunFailed(f"{ended.reason}; the logs are in {self._home / 'log'}")
        return summary
