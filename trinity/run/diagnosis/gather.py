"""Gathers a snapshot: probes, process states, and the answers of synchronizer and buffer."""

import asyncio
import contextlib
import shutil
import struct
import urllib.parse
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.run.diagnosis.snapshot import (
    NEVER_ANSWERS,
    ComponentSnapshot,
    CpuDemand,
    ProbeState,
    ProcessState,
    RecentExit,
    SystemSnapshot,
    demand_of,
)
from trinity.run.local.run_file import ProcessExit, RunningStack
from trinity.run.log_files import log_file_of
from trinity.run.state import RunReport, ask_state
from trinity.runtime.host_port import join_address
from trinity.runtime.rpc.channel import open_channel

MAX_ENDED_WAITS = 20
"""The newest ended waits are reported with a diagnosis, up to this number."""
ANSWER_SECONDS = 3.0
POSTGRES_PORT, NATS_PORT = 5432, 4222
PROTOCOL = 3 << 16
CANNOT_SERVE = ("57P03", "53300")
"""Postgres' codes: it is starting or ending; it has too many connections."""
MAX_ANSWER_BYTES = 4096
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TAIL_BYTES = 8192
MAX_LINE_LENGTH = 300
STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
FOREIGN = ProcessState.FOREIGN
WORKERS = ("trainer", "explorer")
RECENT_EXIT_SECONDS = 60.0
LEAST_FREE_BYTES = 16 * 1024 * 1024
"""The database's log alone grows by this much at a time."""
SHORT_SECONDS = 0.5
"""When a process is stopped or gone the cause is clear: other answers are details."""
RETRY_ANSWER_SECONDS = 10.0
"""For a second attempt, when a busy part has not answered the first."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe."""

    reply: ProbeState
    detail: str = ""


ALIVE = ProbeResult(ProbeState.ANSWERS)


def host_and_port(url: str, default_port: int) -> tuple[str, int]:
    """Returns host and port of an address; the host is empty if the address cannot be probed."""
    parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
    return parts.hostname or "", parts.port or default_port


async def probe_service(channel: grpc.aio.Channel, seconds: float = ANSWER_SECONDS) -> ProbeResult:
    """Checks that a service answers at all."""
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ProbeResult(ProbeState.SILENT)
        return ProbeResult(ProbeState.REFUSES)
    return ALIVE


async def probe_nats(url: str, seconds: float = ANSWER_SECONDS) -> ProbeResult:
    """Checks the greeting that a broker sends to every client."""
    return await _ask(host_and_port(url, NATS_PORT), _read_nats_greeting, seconds)


async def probe_postgres(url: str, seconds: float = ANSWER_SECONDS) -> ProbeResult:
    """Checks that a database asks for a password, or returns its reason not to."""
    return await _ask(host_and_port(url, POSTGRES_PORT), _read_postgres_reply, seconds)


async def _ask(
    where: tuple[str, int], question: Callable[[Connection], Awaitable[ProbeResult]], seconds: float
) -> ProbeResult:
    host, port = where
    if not host:
        return ALIVE
    try:
        async with asyncio.timeout(seconds), _connection(host, port) as connection:
            return await question(connection)
    except TimeoutError:
        return ProbeResult(ProbeState.SILENT)
    except (OSError, asyncio.IncompleteReadError) as error:
        if isinstance(error, ConnectionRefusedError):
            return ProbeResult(ProbeState.REFUSES)
        return ProbeResult(
            ProbeState.REFUSES, f"{join_address(host, port)} cannot be reached ({error})"
        )


@asynccontextmanager
async def _connection(host: str, port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await writer.wait_closed()


async def _read_nats_greeting(connection: Connection) -> ProbeResult:
    reader, _ = connection
    greeting = await reader.readline()
    if greeting.startswith(b"INFO"):
        return ALIVE
    raise ConnectionError("it does not greet like a broker")


async def _read_postgres_reply(connection: Connection) -> ProbeResult:
    reader, writer = connection
    fields = b"user\0trinity_probe\0database\0postgres\0\0"
    writer.write(struct.pack("!ii", len(fields) + 8, PROTOCOL) + fields)
    await writer.drain()
    kind = await reader.readexactly(1)
    (length,) = struct.unpack("!i", await reader.readexactly(4))
    body = await reader.readexactly(min(length - 4, MAX_ANSWER_BYTES))
    if kind != b"E":
        return ALIVE
    error_fields = {
        part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part
    }
    if error_fields.get(b"C") in CANNOT_SERVE:
        return ProbeResult(
            ProbeState.REFUSES, f"it says: {error_fields.get(b'M', 'it cannot serve')}"
        )
    return ALIVE


class Processes:
    """A snapshot of all processes, which serves every query."""

    def __init__(self) -> None:
        self._status: dict[int, str] = {}
        self._children: dict[int, list[int]] = defaultdict(list)
        for process in psutil.process_iter(["ppid", "status"]):
            self._status[process.pid] = process.info["status"]
            self._children[process.info["ppid"]].append(process.pid)

    def condition(self, pid: int) -> ProcessState:
        """Returns the condition of a process."""
        status = self._status.get(pid)
        if status is None or status in GONE:
            return ProcessState.GONE
        return ProcessState.STOPPED if status in STOPPED else ProcessState.RUNNING

    def stopped_below(self, pid: int) -> Mapping[int, str]:
        """Returns the program names of its stopped descendants by process number."""
        found: dict[int, str] = {}
        waiting = list(self._children[pid])
        while waiting:
            child = waiting.pop()
            waiting += self._children.get(child, [])
            if self.condition(child) is ProcessState.STOPPED:
                found[child] = _program_name(child)
        return dict(sorted(found.items()))


def _program_name(pid: int) -> str:
    """Returns the module or program that a process runs."""
    try:
        line = psutil.Process(pid).cmdline()
    except psutil.Error:
        return "a process"
    if "-m" in line[:-1]:
        return line[line.index("-m") + 1]
    return Path(line[0]).name if line else "a process"


def last_log_line(log_file: Path) -> str:
    """Returns the last line of a log."""
    try:
        with log_file.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    nonempty_lines = [line.strip() for line in lines if line.strip()]
    return nonempty_lines[-1][:MAX_LINE_LENGTH] if nonempty_lines else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProbeAnswers:
    seconds: float
    """Time that the parts were given to answer."""
    demands: dict[str, CpuDemand]
    """CPU demand meanwhile of the parts whose processes are ours."""
    results: dict[str, ProbeResult]
    state: RunReport

    @property
    def has_busy_silent_part(self) -> bool:
        """True if a part that has not answered is busy: more time may help."""
        unanswered = {
            name for name, result in self.results.items() if result.reply is ProbeState.SILENT
        }
        answers = {"synchronizer": self.state.members, "buffer": self.state.work}
        unanswered |= {name for name, answer in answers.items() if answer is None}
        return any(
            self.demands[name].is_busy(self.seconds) for name in unanswered & self.demands.keys()
        )


async def gather(running: RunningStack, job_dir: Path) -> SystemSnapshot:
    """Asks all parts at once; takes seconds at most, even if some are down."""
    addresses = _addresses(running)
    processes = await asyncio.to_thread(Processes)
    conditions = {
        name: processes.condition(running.pids[name]) if name in running.pids else FOREIGN
        for name in addresses
    }
    is_clear = any(condition in NEVER_ANSWERS for condition in conditions.values())
    seconds = SHORT_SECONDS if is_clear else ANSWER_SECONDS
    answers = await _ask_services(running, addresses, seconds)
    if not is_clear and answers.has_busy_silent_part:
        answers = await _ask_services(running, addresses, RETRY_ANSWER_SECONDS)
    parts = []
    for name, address in addresses.items():
        if name in WORKERS and name not in running.pids:
            continue  # this stack has no such worker
        pid, result = running.pids.get(name, 0), answers.results[name]
        log_file = log_file_of(job_dir, name)
        is_gone = conditions[name] is ProcessState.GONE
        parts.append(
            ComponentSnapshot(
                name=name,
                address=address.rpartition("//")[2].partition("/")[0],
                pid=pid,
                condition=conditions[name],
                reply=result.reply,
                detail=result.detail,
                log_file=str(log_file) if pid else "",
                last_log_line=last_log_line(log_file) if is_gone else "",
                died=_died(running.deaths.get(name)),
                stopped=processes.stopped_below(pid) if pid else {},
                asked_seconds=answers.seconds,
                demand=answers.demands.get(name, CpuDemand()),
            )
        )
    full_disk = str(job_dir) if is_disk_full(job_dir) else ""
    return SystemSnapshot.with_parts(answers.state, parts, full_disk)


def is_disk_full(folder: Path) -> bool:
    """Returns true if the disk has almost no free space; false if that is unknown."""
    try:
        return shutil.disk_usage(folder).free < LEAST_FREE_BYTES
    except OSError:
        return False


def _died(death: ProcessExit | None) -> RecentExit | None:
    """Returns a recent death; an older one no longer explains the current state."""
    if death is None:
        return None
    seconds_ago = (datetime.now(UTC) - death.at).total_seconds()
    if seconds_ago > RECENT_EXIT_SECONDS:
        return None
    return RecentExit(
        pid=death.pid, last_log_line=death.last_words, seconds_ago=max(seconds_ago, 0.0)
    )


def _addresses(running: RunningStack) -> dict[str, str]:
    """Returns the addresses of the parts, each after those that it depends on."""
    where = running.addresses
    return {
        "postgres": where.postgres_dsn,
        "nats": where.nats_url,
        "synchronizer": where.synchronizer,
        "buffer": where.buffer,
        "trainer": where.trainer,
        "explorer": where.explorer,
    }


async def _ask_services(
    running: RunningStack, addresses: dict[str, str], seconds: float
) -> _ProbeAnswers:
    security = running.addresses.security
    channels = {name: open_channel(addresses[name], security, CHANNEL_OPTIONS) for name in SERVICES}
    before = {name: demand_of(pid) for name, pid in running.pids.items()}
    try:
        async with asyncio.TaskGroup() as tasks:
            asked = channels["synchronizer"], channels["buffer"]
            state = tasks.create_task(
                ask_state(*asked, max_ended_waits=MAX_ENDED_WAITS, seconds=seconds)
            )
            probes = {
                "postgres": tasks.create_task(probe_postgres(addresses["postgres"], seconds)),
                "nats": tasks.create_task(probe_nats(addresses["nats"], seconds)),
                **{
                    name: tasks.create_task(probe_service(channels[name], seconds))
                    for name in SERVICES
                },
            }
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
    return _ProbeAnswers(
        seconds=seconds,
        demands={name: demand_of(running.pids[name]) - demand for name, demand in before.items()},
        results={name: probe.result() for name, probe in probes.items()},
        state=state.result(),
    )
