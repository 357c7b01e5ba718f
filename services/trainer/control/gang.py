"""The gang: the rank processes of a stage, started together, given orders, stopped together."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from services.trainer.control.status import TrainerState
from services.trainer.messages import (
    EVENTS,
    EVENTS_VARIABLE,
    LISTENER_VARIABLE,
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    Event,
    StageOrder,
    StopOrder,
    encode,
)
from trinity.interpreter import module_command

logger = logging.getLogger(__name__)

RANK_COMMAND = tuple(module_command("services.trainer.rank"))
SETTINGS_PREFIX = "TRINITY_TRAINER_"
MAX_KEPT_LINES = 40
MAX_LINE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RankDied:
    """A rank ended without being told to."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class RankEvent:
    """An event that a rank sent."""

    rank: int
    event: Event


@dataclass(slots=True)
class _Rank:
    number: int
    process: asyncio.subprocess.Process
    events: asyncio.StreamReader
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_KEPT_LINES))


class Gang:
    """All ranks, or none: a caller that receives `RankDied` kills the others.

    gang = await Gang.start(num_ranks=2, log_level="INFO", log_format="text")
    gang.send_stage(stage)
    while not isinstance(received := await gang.next_event(), RankDied): ...
    await gang.stop(grace_seconds=8)
    """

    def __init__(self, ranks: list[_Rank]) -> None:
        self._ranks = ranks
        self._events: asyncio.Queue[RankEvent | RankDied] = asyncio.Queue()
        self._is_ending = False
        self._tasks = [asyncio.create_task(self._watch_rank(rank)) for rank in ranks]

    @classmethod
    async def start(
        cls,
        *,
        num_ranks: int,
        log_level: str,
        log_format: str,
        command: Sequence[str] = RANK_COMMAND,
    ) -> "Gang":
        """Starts the processes; each sends `RankReady` once it has imported what it needs."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            shared = _torchrun_variables(num_ranks, port=listener.getsockname()[1])
            shared |= {LOG_LEVEL_VARIABLE: log_level, LOG_FORMAT_VARIABLE: log_format}
            ranks = [await _start_rank(n, command, shared, listener) for n in range(num_ranks)]
        return cls(ranks)

    @property
    def num_ranks(self) -> int:
        """Number of processes in the gang."""
        return len(self._ranks)

    def send_stage(self, order: StageOrder) -> None:
        """Sends a stage to every rank; orders to ranks still importing wait in the pipe."""
        self._write_line(encode(order))

    async def next_event(self) -> RankEvent | RankDied:
        """Returns the next event of any rank."""
        return await self._events.get()

    async def stop(self, grace_seconds: float) -> None:
        """Tells all ranks to finish or abandon their work; kills those that take too long."""
        self._is_ending = True
        self._write_line(encode(StopOrder()))
        waits = [asyncio.ensure_future(rank.process.wait()) for rank in self._ranks]
        _, late = await asyncio.wait(waits, timeout=grace_seconds)
        if late:
            logger.warning("ranks did not stop in time", extra={"num_ranks": len(late)})
        await self.kill()

    async def kill(self) -> None:
        """Kills all ranks at once."""
        self._is_ending = True
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.process.kill()
        for rank in self._ranks:
            await rank.process.wait()
        await asyncio.gather(*self._tasks)

    def _write_line(self, line: bytes) -> None:
        """Writes a line to every rank; one that is gone is reported by `_watch_rank`."""
        for rank in self._ranks:
            assert rank.process.stdin is not None
            with contextlib.suppress(ConnectionError, RuntimeError):
                rank.process.stdin.write(line)

    async def _watch_rank(self, rank: _Rank) -> None:
        """Passes on a rank's events until it ends, then reports how it ended."""
        try:
            await asyncio.gather(self._forward_events(rank), _forward_stderr(rank))
        except ValueError as error:  # half a line of a killed rank, or a line over the limit
            logger.warning(
                "cannot parse a rank's output", extra={"rank": rank.number, "reason": str(error)}
            )
            with contextlib.suppress(ProcessLookupError):
                rank.process.kill()
        code = await rank.process.wait()
        if not self._is_ending:
            self._events.put_nowait(RankDied(rank.number, _how_it_ended(rank, code)))

    async def _forward_events(self, rank: _Rank) -> None:
        async for line in rank.events:
            self._events.put_nowait(RankEvent(rank.number, EVENTS.validate_json(line)))


def _torchrun_variables(num_ranks: int, *, port: int) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


async def _start_rank(
    number: int, command: Sequence[str], shared: dict[str, str], listener: socket.socket
) -> _Rank:
    reading, writing = os.pipe()
    inherited = {EVENTS_VARIABLE: writing}
    if number == 0:
        inherited[LISTENER_VARIABLE] = listener.fileno()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIX)}
    environment |= shared | {"RANK": str(number), "LOCAL_RANK": str(number)}
    environment |= {variable: str(descriptor) for variable, descriptor in inherited.items()}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=list(inherited.values()),
            env=environment,
            limit=MAX_LINE_BYTES,
        )
    finally:
        os.close(writing)
    return _Rank(number, process, await _open_reader(reading))


async def _open_reader(descriptor: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    return reader


async def _forward_stderr(rank: _Rank) -> None:
    """Copies a rank's standard error to ours, and keeps the last lines for the error message."""
    assert rank.process.stderr is not None
    async for raw in rank.process.stderr:
        line = raw.decode(errors="replace").rstrip()
        if line:
            rank.last_lines.append(line)
            sys.stderr.write(f"rank {rank.number}: {line}\n")


def _how_it_ended(rank: _Rank, code: int) -> str:
    ending = (
        f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    )
    last = f": {rank.last_lines[-1]}" if rank.last_lines else ""
    return f"rank {rank.number} {ending}{last}"


StartGang = Callable[[int], Awaitable[Gang]]
"""Starts a gang with this number of ranks."""


class GangManager:
    """Keeps a gang between stages: importing torch takes longer than building a small model."""

    def __init__(self, *, start: StartGang, state: TrainerState, stop_seconds: float) -> None:
        self._start = start
        self._state = state
        self._stop_seconds = stop_seconds
        self._gang: Gang | None = None

    @property
    def has_gang(self) -> bool:
        """True if there are ranks."""
        return self._gang is not None

    async def gang_with(self, num_ranks: int) -> Gang:
        """Returns the current gang if it has that many ranks, else a new one."""
        if self._gang is not None and self._gang.num_ranks != num_ranks:
            await self.stop()
        if self._gang is None:
            self._gang = await self._start(num_ranks)
            self._state.num_ranks = num_ranks
        return self._gang

    async def stop(self) -> None:
        """Stops the ranks gracefully; kills those that take too long."""
        gang, self._gang = self._gang, None
        if gang is not None:
            await gang.stop(self._stop_seconds)

    async def kill(self) -> None:
        """Kills the ranks at once."""
        gang, self._gang = self._gang, None
        if gang is not None:
            await gang.kill()
