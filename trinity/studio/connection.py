"""Connections to the services of a run, whether it runs or has stopped.

A stopped run's broker, database, synchronizer and buffer are opened once, and stay open while the
run is looked at. They hold the run's lock then, so a `trinity run` asks for it (`is_wanted`):
Studio closes them, and goes on with the services of that run.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import grpc

from trinity.api.v1 import query_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import TrinityError, UserError
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.local.addresses import ServiceAddresses, stack_directory_of
from trinity.run.local.given_run import opening_question
from trinity.run.local.reaper import is_wanted, lock_owner_pid, viewer_pid
from trinity.run.local.run_file import read_running
from trinity.run.stored import (
    find_experiment,
    identity_of,
    list_stages,
    opened_stack,
    retry_until_ready,
)
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.runtime.security.credentials import Credentials
from trinity.studio.visitors import Visitor

IDLE_SECONDS = 300.0
"""A run that no page has asked about for this long is closed."""
LOOK_SECONDS = 0.2
"""Pause between two looks at the files of a run's directory."""
RETRY_SECONDS = 3.0
GIVE_WAY_SECONDS = 60.0
"""Time that a run may take from its request to its lock."""


class Phase(StrEnum):
    """The state of a connection."""

    ASKING = "asking"
    """The run was made by others: a person says whether it is opened."""
    OPENING = "opening"
    OPEN = "open"
    WAITING = "waiting"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The addresses of a buffer and a synchronizer, with the credentials."""

    buffer: str
    synchronizer: str
    security: Credentials

    def for_visitor(self, visitor: Visitor) -> "System":
        """Returns the same services, called with the visitor's token."""
        if not visitor.token:
            return self
        return replace(self, security=self.security.for_bearer(visitor.token))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """The services of one run, with its experiment."""

    system: System
    buffer: BufferServiceStub
    queries: QueryServiceStub
    synchronizer: SynchronizerServiceStub
    tenant: str
    label: str
    experiment_id: str
    is_live: bool
    """False for a stopped run, whose services were opened to look at it."""


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """A phase with one sentence about it."""

    phase: Phase
    detail: str = ""
    """May quote users' data."""


class ServiceConnection:
    """Follows services in the background loop; subclasses say which, in `_once`.

    All methods but `state`, `touch` and `opened` run in that loop.
    """

    def __init__(self, job_dir: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.job_dir = job_dir
        self._clock = clock
        self._state = ConnectionState(Phase.OPENING, "The run is being opened.")
        self._opened: OpenRun | None = None
        self.is_confirmed = False
        """True once a person has said that a run of others is to be opened."""
        self.touched = clock()
        """The time on `clock` at which a page last looked at the run."""
        self._followers: list[Callable[[OpenRun], Awaitable[None]]] = []

    @property
    def state(self) -> ConnectionState:
        """The state now."""
        return self._state

    @property
    def opened(self) -> OpenRun | None:
        """The services, while they are open."""
        return self._opened

    @property
    def is_idle(self) -> bool:
        """True if no page has asked about the run for a while."""
        return self._clock() - self.touched > IDLE_SECONDS

    def touch(self) -> None:
        """Says that a page looks at the run."""
        self.touched = self._clock()

    def expire(self) -> None:
        """Lets the run be closed as if no page had looked at it for long."""
        self.touched = -math.inf

    def add_follower(self, follow: Callable[[OpenRun], Awaitable[None]]) -> None:
        """Runs a coroutine while the services are open, from the next opening on."""
        self._followers.append(follow)

    async def keep(self) -> None:
        """Keeps the run open until it is idle."""
        try:
            while not self.is_idle:
                await self._once()
        finally:
            self._opened = None
            self._set(Phase.CLOSED, "The run was closed, as no page looked at it.")

    async def _once(self) -> None:
        """Opens the services, and returns when they have to be opened again."""
        raise NotImplementedError

    async def diagnose(self) -> Diagnosis:
        """Returns what `trinity why` says of the run: takes seconds if a part is down.

        Raises: UserError if the services are not open.
        """
        raise NotImplementedError

    async def _failed(self, sentence: str) -> None:
        """Says why the services are not open, and waits before they are tried again."""
        self._opened = None
        self._set(Phase.FAILED, sentence)
        await asyncio.sleep(RETRY_SECONDS)

    @contextlib.asynccontextmanager
    async def _open(self, opened: OpenRun) -> AsyncIterator[None]:
        """Shows the services to pages and followers for the block."""
        async with _beside(self._followers, opened):
            self._opened = opened
            self._set(Phase.OPEN)
            try:
                yield
            finally:
                self._opened = None

    def _set(self, phase: Phase, detail: str = "") -> None:
        self._state = ConnectionState(phase, detail)


class RunConnection(ServiceConnection):
    """Follows the services of one directory, across starts and stops."""

    async def _once(self) -> None:
        home = stack_directory_of(self.job_dir)
        try:
            identity_of(self.job_dir)  # raises for a directory without a run
            if viewer_pid(home) is None and (running := read_running(home)) is not None:
                await self._with_running(home, running.addresses)
            elif (process := lock_owner_pid(home)) is not None:
                self._set(Phase.WAITING, f"Process {process} starts or stops this run.")
                await asyncio.sleep(LOOK_SECONDS)
            elif (question := opening_question(home)) and not self.is_confirmed:
                self._set(Phase.ASKING, question)
                await asyncio.sleep(LOOK_SECONDS)
            else:
                await self._with_stopped(home)
        except (TrinityError, grpc.aio.AioRpcError, OSError, ValueError, KeyError) as error:
            await self._failed(_sentence(error))

    async def diagnose(self) -> Diagnosis:
        """Asks all parts of the run."""
        home = stack_directory_of(self.job_dir)
        if (running := read_running(home)) is None:
            raise UserError("Nothing runs here.")
        return diagnose(await gather(running, home))

    async def _with_running(self, home: Path, addresses: ServiceAddresses) -> None:
        """Uses running services until they have stopped or been replaced."""
        async with self._services(addresses, is_live=True):
            while not self.is_idle:
                running = await asyncio.to_thread(read_running, home)
                if running is None or running.addresses != addresses:
                    return
                await asyncio.sleep(LOOK_SECONDS)

    async def _with_stopped(self, home: Path) -> None:
        """Opens a stopped run's services until a run wants them, or it is idle."""
        self._set(Phase.OPENING, "The run has stopped: its database is being opened.")
        wanted = asyncio.create_task(_until_wanted(home))
        try:
            async with opened_stack(home, only_views=True) as stack:
                async with self._services(stack.addresses, is_live=False):
                    while not (self.is_idle or wanted.done()):  # noqa: ASYNC110  # a clock and a file
                        await asyncio.sleep(LOOK_SECONDS)
                self._set(Phase.WAITING, "The run is being closed.")
        finally:
            was_wanted = wanted.done()
            wanted.cancel()
        if was_wanted:
            await self._give_way(home)

    async def _give_way(self, home: Path) -> None:
        """Waits until the run that asked for the lock has it, or does not come."""
        self._set(Phase.WAITING, "The run is being started.")
        deadline = self._clock() + GIVE_WAY_SECONDS
        while lock_owner_pid(home) is None and self._clock() < deadline:  # noqa: ASYNC110  # a file
            await asyncio.sleep(LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _services(self, addresses: ServiceAddresses, *, is_live: bool) -> AsyncIterator[None]:
        tenant, label = identity_of(self.job_dir)
        system = System(
            buffer=addresses.buffer,
            synchronizer=addresses.synchronizer,
            security=addresses.security,
        )
        experiment = synchronizer_pb2.Experiment(
            id=await find_experiment(addresses, tenant, label), tenant=tenant, label=label
        )
        async with services_of(system, experiment, is_live=is_live) as opened:
            await retry_until_ready(lambda: stages_of(opened))
            async with self._open(opened):
                yield


@contextlib.asynccontextmanager
async def services_of(
    system: System, experiment: synchronizer_pb2.Experiment, *, is_live: bool
) -> AsyncIterator[OpenRun]:
    """Yields the services with an experiment; whether they answer is not known then."""
    async with (
        open_channel(system.buffer, system.security) as buffer,
        open_channel(system.synchronizer, system.security) as synchronizer,
    ):
        yield OpenRun(
            system=system,
            buffer=BufferServiceStub(buffer),
            queries=QueryServiceStub(buffer),
            synchronizer=SynchronizerServiceStub(synchronizer),
            tenant=experiment.tenant,
            label=experiment.label,
            experiment_id=experiment.id,
            is_live=is_live,
        )


@contextlib.asynccontextmanager
async def _beside(
    followers: list[Callable[[OpenRun], Awaitable[None]]], opened: OpenRun
) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(follow(opened)) for follow in followers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _until_wanted(home: Path) -> None:
    while not is_wanted(home):  # noqa: ASYNC110  # it is a file
        await asyncio.sleep(LOOK_SECONDS)


def _sentence(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"The services do not answer: {error.details()}"
    return str(error) or type(error).__name__


async def stages_of(opened: OpenRun) -> tuple[query_pb2.StoredStage, ...]:
    """Returns the stages of the run with their current counts.

    Raises: TrinityError, with a sentence, if they cannot be read.
    """
    answer = await list_stages(opened.queries, opened.experiment_id, opened.tenant)
    return tuple(answer.stages)


async def experiment_of(
    synchronizer: SynchronizerServiceStub, experiment_id: str, seconds: float = CALL_SECONDS
) -> synchronizer_pb2.GetExperimentResponse:
    """Returns an experiment with its plan.

    Raises: TrinityError.
    """
    request = synchronizer_pb2.GetExperimentRequest(experiment_id=experiment_id)
    answer: synchronizer_pb2.GetExperimentResponse = await answer_of(
        synchronizer.GetExperiment(request, timeout=seconds)
    )
    return answer


def require_open(connection: ServiceConnection) -> OpenRun:
    """Returns the services of a connection.

    Raises: UserError with the reason why they are not open.
    """
    if (opened := connection.opened) is None:
        raise UserError(connection.state.detail or "The run is not open.")
    return opened
