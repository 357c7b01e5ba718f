"""The supervisor: starts and restarts child processes, and stops them all in order."""

import asyncio
import os
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from trinity.run.local import reaper
from trinity.run.local.process_spec import (
    USER_ERROR_EXIT_CODE,
    EventKind,
    ProcessSpec,
    StackEvent,
    StartProcess,
    StopAllProcesses,
    command_from_line,
)

_TAIL_BYTES = 16_384
_TAIL_LINES = 15
_FIRST_RESTART_DELAY_SECONDS = 0.2
_LONGEST_RESTART_DELAY_SECONDS = 5.0
_SHORT_LIFE_SECONDS = 5.0
"""A process that ends sooner is restarted with a longer delay each time."""
_REMEMBERED_SECONDS = 600.0
"""Restarts longer ago than this do not count against a process."""
_ORPHANED_GRACE_SECONDS = 2.0
_SWEEP_SECONDS = 5.0
_LONGEST_COMMAND_BYTES = 2**24


class ChildProcess:
    """A process that leads its own session and may be started more than once."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self.pid = 0
        self.restarts = 0
        self._restarted_at: deque[float] = deque()
        self._num_short_lives = 0
        self._started_at = 0.0
        self.is_stopping = False
        self._was_asked = False
        self.ended = asyncio.Event()
        self.ended.set()
        self.pending_restart: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    @property
    def may_restart(self) -> bool:
        oldest = time.monotonic() - _REMEMBERED_SECONDS
        while self._restarted_at and self._restarted_at[0] < oldest:
            self._restarted_at.popleft()
        return len(self._restarted_at) < self.spec.max_restarts

    def next_restart_delay(self) -> float:
        """Records a restart; returns the seconds to wait before it."""
        now = time.monotonic()
        is_short = now - self._started_at < _SHORT_LIFE_SECONDS
        self._num_short_lives = self._num_short_lives + 1 if is_short else 0
        self._restarted_at.append(now)
        self.restarts += 1
        delay = _FIRST_RESTART_DELAY_SECONDS * 2.0**self._num_short_lives
        return min(delay, _LONGEST_RESTART_DELAY_SECONDS)

    def forbid_restart(self) -> None:
        self.is_stopping = True
        if self.pending_restart is not None:
            self.pending_restart.cancel()

    def start(self) -> None:
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.pid = os.posix_spawn(
            self.spec.argv[0],
            self.spec.argv,
            os.environ | self.spec.env,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.spec.log_file), append, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGPIPE, signal.SIGTERM],
        )
        self._started_at = time.monotonic()
        self.ended.clear()

    def send_stop_signal(self) -> None:
        """Sends the stop signal, once: a second one often means to drop everything."""
        if not self._was_asked:
            self._was_asked = True
            with suppress(ProcessLookupError):
                os.kill(self.pid, self.spec.stop_signal)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def log_tail(self) -> str:
        """Returns the last lines that the process wrote."""
        return _tail(self.spec.log_file)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            content = file.read()
    except FileNotFoundError:
        return ""
    return "\n".join(content.decode(errors="replace").splitlines()[-_TAIL_LINES:])


class ProcessSupervisor:
    """Owns the child processes; one that ends without being asked to is restarted."""

    def __init__(self) -> None:
        self._children: dict[str, ChildProcess] = {}
        self._longest_grace_seconds = float("inf")
        self._current_grace: asyncio.Timeout | None = None

    def start(self, spec: ProcessSpec) -> None:
        child = self._children[spec.name] = ChildProcess(spec)
        self._launch(child, EventKind.STARTED)

    def reap(self) -> None:
        """Handles every ended process; call it at SIGCHLD."""
        by_pid = {child.pid: child for child in self._children.values() if child.is_running}
        for pid, exit_code in reaper.reap():
            if pid in by_pid:
                self._ended(by_pid[pid], exit_code)

    def shorten_grace_periods(self) -> None:
        """Shortens every grace period: the launcher is gone and its processes have to end soon."""
        self._longest_grace_seconds = _ORPHANED_GRACE_SECONDS
        if self._current_grace is not None:
            end = asyncio.get_running_loop().time() + _ORPHANED_GRACE_SECONDS
            self._current_grace.reschedule(end)

    async def stop_all(self) -> None:
        """Stops in reverse start order, then kills everything still below this process."""
        for child in self._children.values():
            child.forbid_restart()
        for child in reversed(self._children.values()):
            await self._stop_child(child)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SWEEP_SECONDS):
                while reaper.kill_descendants():  # noqa: ASYNC110 (no event for the last one)
                    await asyncio.sleep(0.01)

    def _launch(self, child: ChildProcess, kind: EventKind, reason: str = "") -> None:
        try:
            child.start()
        except OSError as error:
            self._restart_or_fail(child, str(error), None)
        else:
            _emit(kind, child, reason)

    def _ended(self, child: ChildProcess, exit_code: int) -> None:
        child.ended.set()
        child.kill_group()
        reaper.kill_orphans({other.pid for other in self._children.values() if other.is_running})
        reason = _describe(exit_code)
        if child.is_stopping:
            _emit(EventKind.STOPPED, child, reason, exit_code)
            return
        _emit(EventKind.EXITED, child, reason, exit_code)
        if exit_code == USER_ERROR_EXIT_CODE and not child.restarts:
            # A restarted process had valid settings before: another part does not answer.
            _emit(EventKind.FAILED, child, "refused to start", exit_code)
        else:
            self._restart_or_fail(child, reason, exit_code)

    def _restart_or_fail(self, child: ChildProcess, reason: str, exit_code: int | None) -> None:
        if not child.may_restart:
            _emit(EventKind.FAILED, child, f"{reason} after {child.restarts} restarts", exit_code)
            return
        child.pending_restart = asyncio.get_running_loop().call_later(
            child.next_restart_delay(), self._launch, child, EventKind.RESTARTED, reason
        )

    async def _stop_child(self, child: ChildProcess) -> None:
        child.forbid_restart()
        if not child.is_running:
            return
        child.send_stop_signal()
        grace_seconds = min(child.spec.stop_grace_seconds, self._longest_grace_seconds)
        try:
            async with asyncio.timeout(grace_seconds) as self._current_grace:
                await child.ended.wait()
        except TimeoutError:
            child.kill_group()
            await child.ended.wait()
        finally:
            self._current_grace = None


def _describe(exit_code: int) -> str:
    if exit_code < 0:
        return f"ended by signal {-exit_code} ({signal.strsignal(-exit_code)})"
    return f"ended with exit code {exit_code}"


def _emit(
    kind: EventKind, child: ChildProcess, reason: str = "", exit_code: int | None = None
) -> None:
    tail = child.log_tail() if kind in (EventKind.EXITED, EventKind.FAILED) else ""
    event = StackEvent(
        kind=kind,
        process=child.spec.name,
        pid=child.pid,
        restarts=child.restarts,
        exit_code=exit_code,
        reason=reason,
        log_file=str(child.spec.log_file),
        log_tail=tail,
    )
    with suppress(BrokenPipeError):  # the launcher is gone, its end of stdin says so too
        os.write(sys.stdout.fileno(), event.to_line())


async def _serve_commands(supervisor: ProcessSupervisor, commands: asyncio.StreamReader) -> None:
    """Carries out commands until everything is stopped or the launcher is gone."""

    async def stop_all() -> None:
        await supervisor.stop_all()
        commands.feed_eof()

    async with asyncio.TaskGroup() as tasks:
        while line := await commands.readline():
            match command_from_line(line):
                case StartProcess(processes):
                    for spec in processes:
                        supervisor.start(spec)
                case StopAllProcesses():
                    tasks.create_task(stop_all())
        supervisor.shorten_grace_periods()
        await supervisor.stop_all()


def _keep_descriptors() -> None:
    """Keeps the directory's lock in this process: children may fork and outlive it."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > sys.stderr.fileno():
            with suppress(OSError):  # the descriptor of the listing is closed
                os.set_inheritable(number, False)


async def supervise() -> None:
    loop = asyncio.get_running_loop()
    supervisor = ProcessSupervisor()
    loop.add_signal_handler(signal.SIGCHLD, supervisor.reap)
    commands = asyncio.StreamReader(limit=_LONGEST_COMMAND_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
        # SIGTERM is handled like losing the launcher.
        loop.add_signal_handler(signal.SIGTERM, commands.feed_eof)
    await _serve_commands(supervisor, commands)


if __name__ == "__main__":
    reaper.become_subreaper()
    _keep_descriptors()
    asyncio.run(supervise())
