"""Takes a snapshot of a run: of its processes, and of its services' answers."""

import asyncio
import shutil
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import grpc

from trinity.api.v1 import (
    buffer_pb2,
    buffer_pb2_grpc,
    synchronizer_pb2,
    synchronizer_pb2_grpc,
)
from trinity.diagnosis import convert
from trinity.diagnosis.demand import Demand, demand_of
from trinity.diagnosis.probes import (
    ANSWER_SECONDS,
    Sign,
    ask_nats,
    ask_postgres,
    ask_service,
)
from trinity.diagnosis.processes import Processes, last_words
from trinity.diagnosis.snapshot import (
    NEVER_ANSWERS,
    Condition,
    Died,
    Part,
    Reply,
    Snapshot,
)
from trinity.local.run_file import Death, RunningStack
from trinity.rpc.channel import open_channel

T = TypeVar("T")
NO_PROXY = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
FOREIGN = Condition.FOREIGN
WORKERS = ("trainer", "explorer")
REMEMBERED_SECONDS = 60.0
LEAST_FREE_BYTES = 16 * 1024 * 1024
"""The database's log alone grows by this much at a time."""
SHORT_SECONDS = 0.5
"""When a process is stopped or gone the cause is clear: other answers are details."""


PATIENT_SECONDS = 10.0
"""For a second attempt, when a busy part has not answered the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answers:
    seconds: float
    """Time that the parts were given to answer."""
    demands: dict[str, Demand]
    """CPU demand meanwhile of the parts whose processes are ours."""
    signs: dict[str, Sign]
    status: synchronizer_pb2.GetStatusResponse | str
    work: buffer_pb2.GetBufferStatusResponse | str

    @property
    def lack_somebody_busy(self) -> bool:
        """True if a part that has not answered is busy: more time may help."""
        lacking = {name for name, sign in self.signs.items() if sign.reply is Reply.SILENT}
        told = {"synchronizer": self.status, "buffer": self.work}
        lacking |= {name for name, answer in told.items() if isinstance(answer, str)}
        return any(
            self.demands[name].is_busy(self.seconds) for name in lacking & self.demands.keys()
        )


async def gather(running: RunningStack, job_dir: Path) -> Snapshot:
    """Asks all parts at once; takes seconds at most, even if some are down."""
    addresses = _addresses(running)
    processes = await asyncio.to_thread(Processes)
    conditions = {
        name: processes.condition(running.pids[name]) if name in running.pids else FOREIGN
        for name in addresses
    }
    is_clear = any(condition in NEVER_ANSWERS for condition in conditions.values())
    seconds = SHORT_SECONDS if is_clear else ANSWER_SECONDS
    answers = await _ask(running, addresses, seconds)
    if not is_clear and answers.lack_somebody_busy:
        answers = await _ask(running, addresses, PATIENT_SECONDS)
    parts = []
    for name, address in addresses.items():
        if name in WORKERS and name not in running.pids:
            continue  # this stack has no such worker
        pid, sign = running.pids.get(name, 0), answers.signs[name]
        log_file = job_dir / "log" / f"{name}.log"
        is_gone = conditions[name] is Condition.GONE
        parts.append(
            Part(
                name=name,
                address=address.rpartition("//")[2].partition("/")[0],
                pid=pid,
                condition=conditions[name],
                reply=sign.reply,
                detail=sign.detail,
                log_file=str(log_file) if pid else "",
                last_words=last_words(log_file) if is_gone else "",
                died=_died(running.deaths.get(name)),
                stopped=processes.stopped_below(pid) if pid else {},
                asked_seconds=answers.seconds,
                demand=answers.demands.get(name, Demand()),
            )
        )
    told = convert.snapshot(tuple(parts), answers.status, answers.work)
    return replace(told, full_disk=str(job_dir) if has_no_room(job_dir) else "")


def has_no_room(folder: Path) -> bool:
    """Returns true if almost nothing can be written there; false if that is unknown."""
    try:
        return shutil.disk_usage(folder).free < LEAST_FREE_BYTES
    except OSError:
        return False


def _died(death: Death | None) -> Died | None:
    """Returns a recent death; an old one explains nothing any more."""
    if death is None:
        return None
    seconds_ago = (datetime.now(UTC) - death.at).total_seconds()
    if seconds_ago > REMEMBERED_SECONDS:
        return None
    return Died(pid=death.pid, last_words=death.last_words, seconds_ago=max(seconds_ago, 0.0))


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


async def _ask(running: RunningStack, addresses: dict[str, str], seconds: float) -> _Answers:
    security = running.addresses.security
    channels = {name: open_channel(addresses[name], security, NO_PROXY) for name in SERVICES}
    before = {name: demand_of(pid) for name, pid in running.pids.items()}
    try:
        async with asyncio.TaskGroup() as tasks:
            status = tasks.create_task(_told(_ask_synchronizer(channels["synchronizer"], seconds)))
            work = tasks.create_task(_told(_ask_buffer(channels["buffer"], seconds)))
            signs = {
                "postgres": tasks.create_task(ask_postgres(addresses["postgres"], seconds)),
                "nats": tasks.create_task(ask_nats(addresses["nats"], seconds)),
                **{
                    name: tasks.create_task(ask_service(channels[name], seconds))
                    for name in SERVICES
                },
            }
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
    return _Answers(
        seconds=seconds,
        demands={name: demand_of(running.pids[name]) - demand for name, demand in before.items()},
        signs={name: sign.result() for name, sign in signs.items()},
        status=status.result(),
        work=work.result(),
    )


async def _told(call: Coroutine[object, object, T]) -> T | str:
    """Returns the answer, or the reason why there is none."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return str(error.details() or error.code().name)


async def _ask_synchronizer(
    channel: grpc.aio.Channel, seconds: float
) -> synchronizer_pb2.GetStatusResponse:
    answer: synchronizer_pb2.GetStatusResponse = await (
        synchronizer_pb2_grpc.SynchronizerServiceStub(channel).GetStatus(
            synchronizer_pb2.GetStatusRequest(), timeout=seconds
        )
    )
    return answer


async def _ask_buffer(
    channel: grpc.aio.Channel, seconds: float
) -> buffer_pb2.GetBufferStatusResponse:
    answer: buffer_pb2.GetBufferStatusResponse = await buffer_pb2_grpc.BufferServiceStub(
        channel
    ).GetBufferStatus(buffer_pb2.GetBufferStatusRequest(), timeout=seconds)
    return answer
