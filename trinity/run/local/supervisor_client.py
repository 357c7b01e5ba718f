"""The launcher's end of a supervisor, on this machine or on another node."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trinity.run.local.infrastructure import SECRET_VARIABLES
from trinity.run.local.process_spec import (
    Command,
    EventKind,
    ProcessSpec,
    StackEvent,
    StartProcess,
    StopAllProcesses,
    command_to_line,
)
from trinity.run.local.reaper import job_environment, kill_orphans_of_job
from trinity.runtime.process.child_process import module_command

logger = logging.getLogger(__name__)

_STOP_SECONDS = 90.0
_LONGEST_EVENT_BYTES = 2**20


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes secrets: users' code runs in these processes; each gets only its own, in files."""
    return {name: value for name, value in environment.items() if name not in SECRET_VARIABLES}


class SupervisorClient:
    """A running supervisor; when it ends, expected or not, no process of the stack remains."""

    def __init__(
        self,
        *,
        process: asyncio.subprocess.Process,
        job_dir: Path,
        on_event: Callable[[StackEvent], None],
        node: str = "",
    ) -> None:
        self._process = process
        self._node = node
        self._job_dir = job_dir
        self._on_event = on_event
        self._is_stopping = False
        self._reader = asyncio.create_task(self._read_events())

    @classmethod
    async def start(
        cls,
        job_dir: Path,
        locks: Sequence[int],
        on_event: Callable[[StackEvent], None],
        *,
        node: str = "",
        command: Sequence[str] = (),
    ) -> "SupervisorClient":
        """Starts it; it inherits the descriptors of `locks`, which last as long as it does.

        `command` runs it on another node.
        """
        with (job_dir / "log" / "supervisor.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                *module_command("trinity.run.local.supervisor"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_without_secrets(os.environ) | job_environment(job_dir),
                start_new_session=True,  # Ctrl-C is the launcher's to handle
                pass_fds=tuple(locks),
                limit=_LONGEST_EVENT_BYTES,
            )
        return cls(process=process, job_dir=job_dir, on_event=on_event, node=node)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def launch(self, spec: ProcessSpec) -> None:
        await self._send(StartProcess([spec]))

    async def stop(self) -> None:
        """Stops every process in order; kills those that do not stop."""
        self._is_stopping = True
        await self._send(StopAllProcesses())
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await asyncio.wait((self._reader,))
        if error := self._reader.exception():
            logger.error("events of the supervisor were lost", exc_info=error)

    async def _send(self, command: Command) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):  # its death is reported as an event
            self._process.stdin.write(command_to_line(command))
            await self._process.stdin.drain()

    async def _read_events(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self._on_event(StackEvent.from_line(line))
        exit_code = await self._process.wait()
        if exit_code != 0 or not self._is_stopping:
            if not self._node:
                await asyncio.to_thread(kill_orphans_of_job, self._job_dir)
            self._on_event(self._own_failure(exit_code))

    def _own_failure(self, exit_code: int) -> StackEvent:
        return StackEvent(
            kind=EventKind.FAILED,
            process=f"supervisor on {self._node}" if self._node else "supervisor",
            pid=self.pid,
            exit_code=exit_code,
            reason="ended before its launcher, all processes were killed",
            log_file=str(self._job_dir / "log" / "supervisor.log"),
        )
