"""A local stack: broker, database and services, started in order, watched and stopped."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from trinity.errors import RunFailed, TrinityError, UserError
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.files import (
    OPERATOR,
    StackCredentials,
    make_socket_folder,
    remove_socket_folder,
)
from trinity.run.local.gpu_claims import GpuClaims
from trinity.run.local.hosts import StackHosts
from trinity.run.local.infrastructure import (
    ExternalServers,
    Infrastructure,
    ProcessWithProbe,
)
from trinity.run.local.process_spec import (
    USER_ERROR_EXIT_CODE,
    EventKind,
    StackEvent,
)
from trinity.run.local.reaper import JobLock, kill_orphans_of_job
from trinity.run.local.run_file import ProcessExit, RunningStack, remove_run_file
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.supervisor_client import SupervisorClient
from trinity.runtime.owned_places import mark_if_new

logger = logging.getLogger(__name__)

_DATA_FOLDERS = {"postgres": "the database", "nats": "the broker"}
"""Processes whose data is in `infra/<name>` of the run's directory."""
_CAUSES = (" PANIC: ", " FATAL: ")
"""A database logs these first and then at length how it ends."""
_MAX_LINE_LENGTH = 300
_LOOK_SECONDS = 5.0


def start_error(event: StackEvent) -> TrinityError:
    """Returns a UserError if the process itself reported that its settings are wrong."""
    lines = event.log_tail.strip().splitlines() or [event.reason]
    if event.exit_code == USER_ERROR_EXIT_CODE:
        return UserError(f"{event.process} refused to start: {lines[-1]}")
    causes = [line for line in lines if any(cause in line for cause in _CAUSES)]
    why = (causes or lines)[-1]
    return RunFailed(
        f"{event.process} {event.reason}: {why}; its log: {event.log_file}{_advice(event)}"
    )


def _advice(event: StackEvent) -> str:
    """Returns advice for damaged data, which a restart does not repair."""
    if event.process not in _DATA_FOLDERS:
        return ""
    folder = Path(event.log_file).parents[1] / "infra" / event.process
    return (
        f"; if {_DATA_FOLDERS[event.process]} is damaged, put a copy of {folder} in its place, or "
        f"delete it to start over"
    )


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Returns the error of the part that failed first; it caused the others to be cancelled."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, ExceptionGroup) else error


class LocalStack:
    """Broker, database and services as processes that live exactly as long as this context."""

    def __init__(
        self,
        *,
        job_dir: Path,
        log_level: str = "INFO",
        log_folder: str = "",
        externals: ExternalServers | None = None,
        environment: Mapping[str, Mapping[str, str]] | None = None,
        services: Callable[[StackContext], list[ProcessWithProbe]] = service_processes,
        max_restarts: int | None = None,
        secure: bool = False,
        tenant: str = "default",
        only_views: bool = False,
        is_given: bool = False,
        gpus: GpuClaims | None = None,
        hosts: StackHosts | None = None,
    ) -> None:
        self._job_dir = job_dir.resolve()
        self._only_views = only_views
        self._is_given = is_given
        self._gpus = gpus
        self._hosts = hosts or StackHosts()
        self._log_level = log_level
        self._log_folder = log_folder
        self._externals = externals or ExternalServers.from_environment()
        self._environment = environment or {}
        self._services = services
        self._max_restarts = max_restarts
        self._security = StackCredentials(
            self._job_dir / "infra" / "security" if secure else None, tenant, self._hosts.certified
        )
        self._lock: JobLock | None = None
        self._supervisor: SupervisorClient | None = None
        self._elsewhere: dict[str, SupervisorClient] = {}
        self._addresses: ServiceAddresses | None = None
        self._is_up = False
        self._started_at = datetime.now(UTC)
        self._pids: dict[str, int] = {}
        self._deaths: dict[str, ProcessExit] = {}
        self._launched: dict[str, ProcessWithProbe] = {}
        self._events: asyncio.Queue[StackEvent | None] = asyncio.Queue()
        self._failure: asyncio.Future[StackEvent] = asyncio.get_running_loop().create_future()
        self._probes: dict[str, asyncio.Task[None]] = {}
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    @property
    def addresses(self) -> ServiceAddresses:
        assert self._addresses is not None, "the stack is not started"
        return self._addresses

    @property
    def pids(self) -> dict[str, int]:
        """The current process numbers by name."""
        return dict(self._pids)

    @property
    def owns_database(self) -> bool:
        """True if only the holder of the directory's lock uses the database."""
        return self._externals.postgres_dsn is None

    async def events(self) -> AsyncIterator[StackEvent]:
        """Yields events of the processes, from the start on, until the stack is stopped."""
        while (event := await self._events.get()) is not None:
            yield event

    async def stop(self) -> None:
        """Stops everything in order: explorer, trainer, buffer, synchronizer, broker, database."""
        self._is_up = False
        for task in (*self._probes.values(), *([self._watch] if self._watch else [])):
            task.cancel()
        await asyncio.gather(*(supervisor.stop() for supervisor in self._elsewhere.values()))
        self._elsewhere.clear()
        if self._supervisor is not None:
            await self._supervisor.stop()
            self._supervisor = None
        if self._lock is not None:
            remove_run_file(self._job_dir)
            remove_socket_folder(self._job_dir)
            if self._gpus is not None:
                self._gpus.release()
            self._lock.release()
            self._lock = None
            self._events.put_nowait(None)

    async def _start(self) -> None:
        mark_if_new(self._job_dir)
        (self._job_dir / "log" / self._log_folder).mkdir(parents=True, exist_ok=True)
        self._lock = await asyncio.to_thread(
            JobLock.acquire, self._job_dir, only_views=self._only_views
        )
        await asyncio.to_thread(kill_orphans_of_job, self._job_dir)
        if self._gpus is not None:
            self._gpus.take()
        await asyncio.to_thread(make_socket_folder, self._job_dir)
        await asyncio.to_thread(self._security.issue_credentials)
        infrastructure = Infrastructure(
            job_dir=self._job_dir,
            externals=self._externals,
            security=self._security,
            is_given=self._is_given,
            host=self._hosts.own,
        )
        await self._externals.check_reachable()
        self._supervisor = await SupervisorClient.start(
            self._job_dir, self._locks(self._lock), self._on_event
        )
        await self._unless_failed(infrastructure.start_embedded(self._launch))
        self._addresses = ServiceAddresses.with_free_ports(
            nats_url=infrastructure.public_nats_url,
            postgres_dsn=infrastructure.public_postgres_dsn,
            security_dir=str(self._security.credentials_for(OPERATOR).folder or ""),
            host=self._hosts.own,
        )
        surroundings = StackContext(
            job_dir=self._job_dir,
            log_level=self._log_level,
            log_folder=self._log_folder,
            addresses=self._addresses,
            files=infrastructure.write_files(),
            environment=self._environment,
            security=self._security,
        )
        await self._unless_failed(self._launch_together(self._services(surroundings)))
        self._is_up = True
        self._write_run_file()
        self._watch = asyncio.create_task(self._end_refusing_processes())

    def _locks(self, lock: JobLock) -> list[int]:
        """Returns the descriptors of the locks that last as long as the supervisor."""
        return [lock.descriptor, *(self._gpus.descriptors if self._gpus is not None else ())]

    async def _launch_together(self, services: list[ProcessWithProbe]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for service in services:
                tasks.create_task(self._launch(service))

    async def _launch(self, launchable: ProcessWithProbe) -> None:
        """Starts a process and returns when it is ready."""
        if self._max_restarts is not None:
            spec = replace(launchable.spec, max_restarts=self._max_restarts)
            launchable = replace(launchable, spec=spec)
        self._launched[launchable.spec.name] = launchable
        supervisor = await self._supervisor_on(launchable.spec.node)
        await supervisor.launch(launchable.spec)
        await self._announce_ready(launchable)

    async def _supervisor_on(self, node: str) -> SupervisorClient:
        """Returns the supervisor of a node, which is started for the first process there."""
        if not node:
            assert self._supervisor is not None
            return self._supervisor
        if node not in self._elsewhere:
            command = self._hosts.command_on(node)
            self._elsewhere[node] = await SupervisorClient.start(
                self._job_dir, (), self._on_event, node=node, command=command
            )
        return self._elsewhere[node]

    async def _announce_ready(self, launchable: ProcessWithProbe) -> None:
        name = launchable.spec.name
        await launchable.wait_ready()
        pid = self._pids.get(name, 0)
        self._events.put_nowait(StackEvent(kind=EventKind.READY, process=name, pid=pid))

    async def _unless_failed(self, work: Awaitable[None]) -> None:
        """Waits for the work, but stops when a process has failed for good."""
        task = asyncio.ensure_future(work)
        either: set[asyncio.Future[None] | asyncio.Future[StackEvent]] = {task, self._failure}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                raise start_error(self._failure.result())
            await task
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _on_event(self, event: StackEvent) -> None:
        self._events.put_nowait(event)
        match event.kind:
            case EventKind.STARTED:
                self._note_pid(event)
            case EventKind.EXITED:
                self._deaths[event.process] = _death(event)
            case EventKind.RESTARTED:
                self._note_pid(event)
                self._watch_restart(event.process)
            case EventKind.FAILED if not self._failure.done():
                self._failure.set_result(event)

    def _note_pid(self, event: StackEvent) -> None:
        """Notes a process of this machine: on another the number says nothing here."""
        if not self._launched[event.process].spec.node:
            self._pids[event.process] = event.pid

    def _watch_restart(self, name: str) -> None:
        """Announces when the process answers again; during the start its launch waits for that."""
        if not self._is_up:
            return
        try:
            self._write_run_file()
        except OSError as error:  # later events must still be handled
            logger.warning("the run file is not up to date", extra={"why": str(error)})
        if (before := self._probes.get(name)) is not None:
            before.cancel()  # it would announce a process that is gone
        self._probes[name] = asyncio.create_task(self._await_return(self._launched[name]))

    async def _await_return(self, launchable: ProcessWithProbe) -> None:
        try:
            await self._announce_ready(launchable)
        except RunFailed as error:
            self._on_event(
                StackEvent(
                    kind=EventKind.FAILED,
                    process=launchable.spec.name,
                    pid=self._pids.get(launchable.spec.name, 0),
                    reason=str(error),
                    log_file=str(launchable.spec.log_file),
                )
            )

    async def _end_refusing_processes(self) -> None:
        """Ends processes that serve no client before a restart."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for name, launchable in [*self._launched.items()]:
                if await asyncio.to_thread(launchable.is_refusing):
                    with suppress(OSError):  # it has just ended
                        os.kill(self._pids[name], launchable.spec.stop_signal)

    def _write_run_file(self) -> None:
        assert self._supervisor is not None
        RunningStack(
            addresses=self.addresses,
            launcher_pid=os.getpid(),
            supervisor_pid=self._supervisor.pid,
            pids=self.pids,
            started_at=self._started_at,
            deaths=self._deaths,
        ).write_run_file(self._job_dir)


def _death(event: StackEvent) -> ProcessExit:
    last_line = event.log_tail.strip().rpartition("\n")[2]
    return ProcessExit(pid=event.pid, last_words=last_line[:_MAX_LINE_LENGTH], at=datetime.now(UTC))
