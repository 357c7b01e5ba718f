"""Processes in which users' rewards and workflows run, and which are killed with what hangs."""

import asyncio
import contextlib
import json
import logging
import math
import os
import re
import signal
import sysconfig
import tempfile
import time
from asyncio.subprocess import Process
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import trinity
from trinity.isolation.values import UserProcessDied, log_line
from trinity.runtime.child_process import end_child, module_command, start_child

logger = logging.getLogger(__name__)
WORKER = "trinity.isolation.worker"
START_SECONDS = 180.0
"""Time to import users' files, on a machine that does much else."""
GROW_SECONDS = 0.2
"""Wait of a call for a process, after which a further one may be started."""
CALL_SHARE = 0.1
"""Weight of the newest call in the mean of their times."""
MAX_LINE_BYTES = 64 * 1024 * 1024
DUMP_SECONDS = 0.3
"""Wait for a process to say where it is, before it is killed."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_NOT_USERS = (str(Path(trinity.__file__).parent), sysconfig.get_paths()["stdlib"])
Message = dict[str, Any]


class UserProcess:
    """One process of users' code, for one caller at a time.

    process = await UserProcess.start()
    process.write({"kind": "reward", ...})
    answer = await process.read()
    """

    def __init__(self, process: Process, dump: IO[bytes]) -> None:
        self._process = process
        self._dump = dump
        self.loaded: set[str] = set()
        """Keys of what was loaded before a run."""

    @classmethod
    async def start(cls) -> "UserProcess":
        """Starts a process and waits until it has loaded users' files.

        Raises: UserProcessDied.
        """
        dump = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is killed
        try:
            process = await start_child(
                module_command(WORKER, str(dump.fileno())),
                limit=MAX_LINE_BYTES,
                env=os.environ,
                pass_fds=(dump.fileno(),),
            )
        except BaseException:
            dump.close()
            raise
        started = cls(process, dump)
        try:
            await started.load([])
        except BaseException:
            await started.kill()
            raise
        return started

    async def load(self, rewards: list[Message], workflows: list[Message] | None = None) -> Message:
        """Imports parts; returns the answer.

        Raises: UserProcessDied.
        """
        self.write({"kind": "load", "rewards": rewards, "workflows": workflows or []})
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self.read()
        except TimeoutError as error:
            raise UserProcessDied(
                f"the process of users' rewards and workflows did not load them in "
                f"{START_SECONDS:g} s{await self.place()}: let their files take less to import"
            ) from error

    def write(self, message: Mapping[str, object]) -> None:
        """Sends a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def read(self) -> Message:
        """Returns the next message; what users' code logged before it is logged here.

        Raises: UserProcessDied.
        """
        while "log" in (message := await self._read_message()):
            log_line(message["log"])
        return message

    async def _read_message(self) -> Message:
        assert self._process.stdin is not None and self._process.stdout is not None
        line = b""
        with contextlib.suppress(ConnectionError, ValueError):
            await self._process.stdin.drain()
            line = await self._process.stdout.readline()
        if not line:
            raise UserProcessDied(
                f"the process that ran it ended ({await self._ending()}): "
                "its output on standard error is in the explorer's log"
            )
        message: Message = json.loads(line)
        if "error" in message:
            raise UserProcessDied(message["error"])
        return message

    async def place(self) -> str:
        """Returns where the process is, as file and line; empty if it does not say."""
        if self._process.returncode is not None:
            return ""
        begin = os.lseek(self._dump.fileno(), 0, os.SEEK_END)
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        for _ in range(int(DUMP_SECONDS / 0.01)):
            await asyncio.sleep(0.01)
            text = os.pread(self._dump.fileno(), 65_536, begin).decode(errors="replace")
            if text.endswith("\n"):
                return _user_frame(text)
        return ""

    async def kill(self) -> None:
        """Kills the process and all that it started."""
        await end_child(self._process)
        self._dump.close()

    async def _ending(self) -> str:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._process.wait()
        code = self._process.returncode
        if code is not None and code < 0:
            return f"by {signal.Signals(-code).name}"
        return f"with exit code {code}"


def _user_frame(text: str) -> str:
    """Returns the innermost line of a user's file in a traceback of `faulthandler`."""
    frames = [found for found in _FRAME.finditer(text) if not found["file"].startswith("<")]
    own = [found for found in frames if not found["file"].startswith(_NOT_USERS)]
    shown = next(iter(own or frames), None)
    return f" ({shown['file']}, line {shown['line']})" if shown else ""


class UserProcessPool:
    """Warm processes of users' code; the one that was free last is taken first.

    A further one is started where calls wait and none has ended for a moment, or where those that
    wait would take longer than a start does: so quick rewards need few, however many come at once,
    and slow ones get up to `max_processes`. One that is given up is killed.

        async with pool.lease() as process:
            process.write(request)
            answer = await process.read()
    """

    def __init__(self, *, max_processes: int) -> None:
        self._max_processes = max_processes
        self._idle: list[UserProcess] = []
        self._all: set[UserProcess] = set()
        self._waiting: deque[asyncio.Future[UserProcess]] = deque()
        self._num_starting = 0
        self._start_seconds = 0.0
        self._call_seconds = 0.0
        """Mean over the last calls."""
        self._last_end = -math.inf

    @property
    def num_processes(self) -> int:
        """The number of processes that run."""
        return len(self._all)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[UserProcess]:
        """Yields a process; it is killed if the block ends with an error.

        Raises: UserProcessDied when it cannot be started.
        """
        process = await self._take()
        begun = time.monotonic()
        try:
            yield process
        except BaseException:
            self._all.discard(process)
            await process.kill()
            raise
        self._last_end = time.monotonic()
        self._call_seconds += CALL_SHARE * (self._last_end - begun - self._call_seconds)
        self._give_back(process)

    async def close(self) -> None:
        """Kills all processes."""
        for process in tuple(self._all):
            self._all.discard(process)
            await process.kill()
        self._idle.clear()

    async def _take(self) -> UserProcess:
        if self._idle:
            return self._idle.pop()
        free: asyncio.Future[UserProcess] = asyncio.get_running_loop().create_future()
        self._waiting.append(free)
        try:
            return await self._wait_or_start(free)
        except BaseException:
            if free.done():
                self._give_back(free.result())
            raise
        finally:
            if free in self._waiting:
                self._waiting.remove(free)

    async def _wait_or_start(self, free: asyncio.Future[UserProcess]) -> UserProcess:
        if self._all or self._num_starting:
            await asyncio.wait({free}, timeout=GROW_SECONDS)
        while not free.done():
            if self._may_grow:
                started = await self._start()
                if not free.done():
                    return started
                self._give_back(started)
            else:
                await asyncio.wait({free}, timeout=GROW_SECONDS)
        return free.result()

    @property
    def _may_grow(self) -> bool:
        is_free = not self._num_starting and len(self._all) < self._max_processes
        return is_free and (self._is_stuck or self._queue_seconds > self._start_seconds)

    @property
    def _is_stuck(self) -> bool:
        return time.monotonic() - self._last_end > GROW_SECONDS

    @property
    def _queue_seconds(self) -> float:
        """Time that the processes will take for the calls that wait, if they are as the last."""
        return len(self._waiting) * self._call_seconds / max(len(self._all), 1)

    async def _start(self) -> UserProcess:
        self._num_starting += 1
        begun = time.monotonic()
        try:
            process = await UserProcess.start()
        finally:
            self._num_starting -= 1
        self._start_seconds = time.monotonic() - begun
        self._all.add(process)
        return process

    def _give_back(self, process: UserProcess) -> None:
        """Hands a process to the call that has waited longest, or keeps it for the next one."""
        while self._waiting:
            free = self._waiting.popleft()
            if not free.done():
                free.set_result(process)
                return
        self._idle.append(process)
