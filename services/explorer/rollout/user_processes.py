"""A process in which users' rewards and workflows run, and which is killed with what hangs."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from contextvars import Context, copy_context
from pathlib import Path
from typing import IO

import trinity
from trinity.runtime.process.box import OPEN_BOX, Box, box_refusal
from trinity.runtime.process.child_process import OWN_IDENTITY, Identity
from trinity.runtime.process.worker import Message, NotAnAnswer, Worker, WorkerFailed
from trinity.user_code.values import log_line

logger = logging.getLogger(__name__)
WORKER = "services.explorer.user_process.worker"
START_SECONDS = 180.0
"""Time to import users' files, on a machine that does much else."""
DUMP_SECONDS = 0.3
"""Wait for a process to say where it is, before it is killed."""
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)')
_NOT_USERS = (str(Path(trinity.__file__).parent), sysconfig.get_paths()["stdlib"])


class UserProcess:
    """One process of users' code, for one caller at a time.

    process = await UserProcess.start()
    process.write({"kind": "reward", ...})
    answer = await process.read()
    """

    def __init__(self, worker: Worker, dump: IO[bytes]) -> None:
        self._worker = worker
        self._dump = dump
        self.write = worker.write
        self._loaded_parts: list[Message] = []
        self._ignored: set[int] = set()
        """Numbers of calls whose answers, that they were not begun, are to come and not awaited."""

    @classmethod
    async def start(cls, parts: Sequence[Message] = ()) -> "UserProcess":
        """Starts a process and waits until it has loaded users' files and these parts.

        A part that cannot be loaded says so when it is called.

        Raises: WorkerFailed.
        """
        dump = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is killed
        try:
            descriptor = dump.fileno()
            worker = await Worker.start(
                WORKER, str(descriptor), pass_fds=(descriptor,), identity=await _identity()
            )
        except BaseException:
            dump.close()
            raise
        started = cls(worker, dump)
        try:
            worker.ask({"kind": "load", "parts": list(parts)})
            await started._loaded(parts)
        except BaseException:
            await started.kill()
            raise
        return started

    async def load(self, part: Message) -> Message:
        """Imports a part that it does not have; returns the answer.

        Raises: WorkerFailed.
        """
        if part in self._loaded_parts:
            return {}
        self.write({"kind": "load", "parts": [part]})
        return await self._loaded([part])

    async def _loaded(self, parts: Sequence[Message]) -> Message:
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self.read()
        except TimeoutError as error:
            raise WorkerFailed(
                f"the process of users' rewards and workflows did not load them in "
                f"{START_SECONDS:g} s{await self.place()}: let their files take less to import"
            ) from error
        if "failure" not in answer:
            self._loaded_parts += parts
        return answer

    def ignore_answers(self, numbers: Iterable[int]) -> None:
        """Leaves out the answers to calls that were sent and are not begun."""
        self._ignored.update(numbers)

    async def read(self, context: Context | None = None) -> Message:
        """Returns the next message; earlier log lines of users' code are logged here.

        `context` is that of the caller whose code logs, if it is not the current one.

        Raises: WorkerFailed.
        """
        while True:
            try:
                message = await self._worker.read()
            except NotAnAnswer:
                raise
            except WorkerFailed as error:
                raise WorkerFailed(
                    f"{error}: its output on standard error is in the explorer's log"
                ) from error
            if "error" in message:
                raise WorkerFailed(message["error"])
            if "log" in message:
                (context or copy_context()).run(log_line, message["log"])
            elif message.get("number") in self._ignored:
                self._ignored.discard(message["number"])
            else:
                return message

    async def place(self) -> str:
        """Returns where the process is, as file and line; empty if it does not say."""
        process = self._worker.process
        if process.returncode is not None:
            return ""
        begin = os.lseek(self._dump.fileno(), 0, os.SEEK_END)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
        for _ in range(int(DUMP_SECONDS / 0.01)):
            await asyncio.sleep(0.01)
            if self._dump.closed:  # killed meanwhile
                return ""
            text = os.pread(self._dump.fileno(), 65_536, begin).decode(errors="replace")
            if text.endswith("\n"):
                return _user_frame(text)
        return ""

    async def kill(self) -> None:
        """Kills the process and all that it started."""
        await self._worker.kill()
        self._dump.close()


async def _identity() -> Identity | Box:
    """Returns the way to start it: in a box that keeps it from ending the explorer."""
    refusal = await asyncio.to_thread(box_refusal, OPEN_BOX)
    if refusal:
        logger.info("users' code runs without a box", extra={"reason": refusal})
    return OWN_IDENTITY if refusal else OPEN_BOX


def _user_frame(text: str) -> str:
    """Returns the innermost line in a user's file from a traceback of `faulthandler`."""
    frames = [found for found in _FRAME.finditer(text) if not found["file"].startswith("<")]
    own = [found for found in frames if not found["file"].startswith(_NOT_USERS)]
    shown = next(iter(own or frames), None)
    return f" ({shown['file']}, line {shown['line']})" if shown else ""
