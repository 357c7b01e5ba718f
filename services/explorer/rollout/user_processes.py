"""A process in which users' rewards and workflows run, and which is killed with what hangs."""

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import signal
import sysconfig
import tempfile
from asyncio.subprocess import Process
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import trinity
from trinity.runtime.process.box import OPEN_BOX, Box, box_refusal
from trinity.runtime.process.child_process import (
    OWN_IDENTITY,
    Identity,
    end_child,
    module_command,
    start_child,
)
from trinity.user_code.values import UserProcessDied, log_line
from trinity.user_code.worker_process import NotAnAnswer, answer_of

logger = logging.getLogger(__name__)
WORKER = "services.explorer.user_process.worker"
START_SECONDS = 180.0
"""Time to import users' files, on a machine that does much else."""
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
        self._token = secrets.token_hex(8)
        self.loaded: set[str] = set()
        """Keys of what was loaded before a run."""
        self._ignored: set[int] = set()
        """Numbers of calls whose answers, that they were not begun, are to come and not awaited."""

    @classmethod
    async def start(cls, rewards: Sequence[Message] = ()) -> "UserProcess":
        """Starts a process and waits until it has loaded users' files and these rewards.

        A reward that cannot be loaded says so when it is called.

        Raises: UserProcessDied.
        """
        dump = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is killed
        try:
            process = await start_child(
                module_command(WORKER, str(dump.fileno())),
                limit=MAX_LINE_BYTES,
                env=os.environ,
                pass_fds=(dump.fileno(),),
                identity=await _identity(),
            )
        except BaseException:
            dump.close()
            raise
        started = cls(process, dump)
        try:
            await started.load(list(rewards))
        except BaseException:
            await started.kill()
            raise
        return started

    async def load(self, rewards: list[Message], workflows: list[Message] | None = None) -> Message:
        """Imports parts; returns the answer.

        Raises: UserProcessDied.
        """
        parts = {"rewards": rewards, "workflows": workflows or []}
        self.write({"kind": "load", "token": self._token, **parts})
        try:
            async with asyncio.timeout(START_SECONDS):
                return await self.read()
        except TimeoutError as error:
            raise UserProcessDied(
                f"the process of users' rewards and workflows did not load them in "
                f"{START_SECONDS:g} s{await self.place()}: let their files take less to import"
            ) from error

    def write(self, *messages: Mapping[str, object]) -> None:
        """Sends lines, all of them at once."""
        assert self._process.stdin is not None
        lines = "".join(f"{json.dumps(message)}\n" for message in messages)
        self._process.stdin.write(lines.encode())

    def ignore_answers(self, numbers: Iterable[int]) -> None:
        """Leaves out the answers to calls that were sent and are not begun."""
        self._ignored.update(numbers)

    async def read(self) -> Message:
        """Returns the next message; what users' code logged before it is logged here.

        Raises: UserProcessDied.
        """
        while True:
            message = await self._read_message()
            if "log" in message:
                log_line(message["log"])
            elif message.get("number") in self._ignored:
                self._ignored.discard(message["number"])
            else:
                return message

    async def _read_message(self) -> Message:
        assert self._process.stdin is not None and self._process.stdout is not None
        line = b""
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.drain()
        with contextlib.suppress(ConnectionError, ValueError):  # also what came before its end
            line = await self._process.stdout.readline()
        if not line:
            raise UserProcessDied(
                f"the process that ran it ended ({await self._ending()}): "
                "its output on standard error is in the explorer's log"
            )
        try:
            message: Message = answer_of(line, self._token)
        except NotAnAnswer as error:
            raise UserProcessDied(str(error)) from error
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


async def _identity() -> Identity | Box:
    """Returns the way to start it: in a box that keeps it from ending the explorer."""
    refusal = await asyncio.to_thread(box_refusal, OPEN_BOX)
    if refusal:
        logger.info("users' code runs without a box", extra={"reason": refusal})
    return OWN_IDENTITY if refusal else OPEN_BOX


def _user_frame(text: str) -> str:
    """Returns the innermost line of a user's file in a traceback of `faulthandler`."""
    frames = [found for found in _FRAME.finditer(text) if not found["file"].startswith("<")]
    own = [found for found in frames if not found["file"].startswith(_NOT_USERS)]
    shown = next(iter(own or frames), None)
    return f" ({shown['file']}, line {shown['line']})" if shown else ""
