"""The worker group: the rank processes of a stage, started, ordered and stopped together."""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace

from services.trainer.control.places import RankPlaces, gang_address, ranks_per_host
from services.trainer.control.status import TrainerState
from services.trainer.messages import (
    EVENTS,
    EVENTS_VARIABLE,
    LISTENER_VARIABLE,
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    METRICS_VARIABLE,
    Event,
    RankMeasured,
    StageOrder,
    StopOrder,
    encode,
)
from trinity.api.v1.hosts_pb2 import HostReport, LeaderMessage
from trinity.runtime.process.child_process import module_command
from trinity.runtime.rpc.host_group import HostLink
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.telemetry import metrics

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
    """A worker group: the ranks of a stage; a caller that receives `RankDied` kills the others.

    network = GangNetwork(address="127.0.0.1")
    gang = await Gang.lead(num_ranks=2, network=network, log_level="INFO", log_format="text")
    gang.send_stage(stage)
    while not isinstance(received := await gang.next_event(), RankDied): ...
    await gang.stop(grace_seconds=8)
    """

    def __init__(self, ranks: list[_Rank], *, hosts: Sequence[HostLink] = (), num_ranks: int = 0):
        self._ranks = ranks
        self._hosts = hosts
        self._num_ranks = num_ranks or len(ranks)
        self._events: asyncio.Queue[RankEvent | RankDied] = asyncio.Queue()
        self._is_ending = False
        self._tasks = [asyncio.create_task(self._watch_rank(rank)) for rank in ranks]

    @classmethod
    async def lead(
        cls,
        *,
        num_ranks: int,
        network: "GangNetwork",
        log_level: str,
        log_format: str,
        command: Sequence[str] = RANK_COMMAND,
    ) -> "Gang":
        """Starts the processes of this host, the first ones, and has the other hosts start theirs.

        Raises: UserError if ranks and hosts, or this host and its network, do not fit.
        """
        num_local = ranks_per_host(num_ranks, 1 + len(network.hosts))
        with socket.create_server((network.address, 0)) as listener:
            places = RankPlaces(
                num_ranks=num_ranks,
                first=0,
                num_local=num_local,
                master_address=network.address,
                master_port=listener.getsockname()[1],
            )
            shared = network.variables() | _log_variables(log_level, log_format)
            ranks = await _start_ranks(places, command, shared, listener)
        gang = cls(ranks, hosts=network.hosts, num_ranks=num_ranks)
        for number, host in enumerate(network.hosts, start=1):
            gang._join(host, replace(places, first=number * num_local), network.number)
        return gang

    @classmethod
    async def start_part(
        cls,
        places: RankPlaces,
        *,
        address: str,
        log_level: str,
        log_format: str,
        command: Sequence[str] = RANK_COMMAND,
    ) -> "Gang":
        """Starts the ranks of a host that does not lead."""
        shared = GangNetwork(address=address, is_apart=True).variables()
        shared |= _log_variables(log_level, log_format)
        return cls(await _start_ranks(places, command, shared, None))

    def _join(self, host: HostLink, places: RankPlaces, number: int) -> None:
        """Adds the ranks of another host to this group."""

        def report(message: HostReport) -> None:
            if message.ended:
                self._record_end(message.rank, f"{message.ended} on {host.name}")
            else:
                event = EVENTS.validate_json(message.event_json)
                self._events.put_nowait(RankEvent(message.rank, event))

        host.start_part(
            number,
            json.dumps(asdict(places)),
            on_report=report,
            on_loss=lambda reason: self._record_end(places.first, reason),
        )

    def _record_end(self, rank: int, reason: str) -> None:
        if not self._is_ending:
            self._events.put_nowait(RankDied(rank, reason))

    @property
    def num_ranks(self) -> int:
        """Number of processes in the group, on all hosts."""
        return self._num_ranks

    @property
    def is_whole(self) -> bool:
        """True while all of its hosts are there."""
        return not any(host.is_lost for host in self._hosts)

    def send_order(self, line: bytes) -> None:
        """Sends a line as it is to every rank."""
        self._write_line(line)

    def send_stage(self, order: StageOrder) -> None:
        """Sends a stage to every rank; orders to ranks still importing wait in the pipe."""
        self._write_line(encode(order))

    async def next_event(self) -> RankEvent | RankDied:
        """Returns the next event of any rank."""
        return await self._events.get()

    async def next_report(self) -> HostReport:
        """Returns the next event for the host that leads."""
        received = await self.next_event()
        if isinstance(received, RankDied):
            return HostReport(rank=received.rank, ended=received.reason)
        return HostReport(rank=received.rank, event_json=received.event.model_dump_json())

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
        for host in self._hosts:
            host.release()
        for rank in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.process.kill()
        for rank in self._ranks:
            await rank.process.wait()
        await asyncio.gather(*self._tasks)

    def _write_line(self, line: bytes) -> None:
        """Writes a line to every rank; one that is gone is reported by `_watch_rank`."""
        for host in self._hosts:
            host.send(LeaderMessage(order_json=line.decode()))
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
        self._record_end(rank.number, _how_it_ended(rank, code))

    async def _forward_events(self, rank: _Rank) -> None:
        async for line in rank.events:
            event = EVENTS.validate_json(line)
            if isinstance(event, RankMeasured):
                metrics.record(event.name, event.value, event.attributes)
            else:
                self._events.put_nowait(RankEvent(rank.number, event))


@dataclass(frozen=True, slots=True, kw_only=True)
class GangNetwork:
    """The other hosts of a worker group, and the address of this one."""

    address: str
    hosts: tuple[HostLink, ...] = ()
    number: int = 0
    """Counts the gangs, so that what ranks of an earlier one say is not taken for news."""
    is_apart: bool = False
    """True on a host that does not lead."""

    def variables(self) -> dict[str, str]:
        """Returns the variables that bind collectives to the address, unless it is loopback."""
        if not (self.hosts or self.is_apart) or is_loopback(self.address):
            return {}
        return gang_address(self.address).interface_variables()


StartGang = Callable[[int], Awaitable[Gang]]
"""Starts a worker group with this number of ranks."""


def _log_variables(level: str, style: str) -> dict[str, str]:
    return {LOG_LEVEL_VARIABLE: level, LOG_FORMAT_VARIABLE: style}


def _torchrun_variables(places: RankPlaces) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(places.num_ranks),
        "LOCAL_WORLD_SIZE": str(places.num_local),
        "MASTER_ADDR": places.master_address,
        "MASTER_PORT": str(places.master_port),
    }


async def _start_ranks(
    places: RankPlaces,
    command: Sequence[str],
    shared: dict[str, str],
    listener: socket.socket | None,
) -> list[_Rank]:
    shared = shared | _torchrun_variables(places)
    if metrics.is_on():
        shared[METRICS_VARIABLE] = "1"
    return [
        await _start_rank(places.first + local, local, command, shared, listener)
        for local in range(places.num_local)
    ]


async def _start_rank(
    number: int,
    local: int,
    command: Sequence[str],
    shared: dict[str, str],
    listener: socket.socket | None,
) -> _Rank:
    reading, writing = os.pipe()
    inherited = {EVENTS_VARIABLE: writing}
    if number == 0 and listener is not None:
        inherited[LISTENER_VARIABLE] = listener.fileno()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS_PREFIX)}
    environment |= shared | {"RANK": str(number), "LOCAL_RANK": str(local)}
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


class GangManager:
    """Keeps the ranks between stages: importing torch takes longer than building a small model."""

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
        """Returns the current group if it has `num_ranks` ranks, else a new one."""
        await self.stop_unfit(num_ranks)
        if self._gang is None:
            self._gang = await self._start(num_ranks)
            self._state.num_ranks = num_ranks
        return self._gang

    async def stop_unfit(self, num_ranks: int) -> None:
        """Stops a group that has another number of ranks, or lacks one of its hosts."""
        gang = self._gang
        if gang is not None and (gang.num_ranks != num_ranks or not gang.is_whole):
            await self.stop()

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
