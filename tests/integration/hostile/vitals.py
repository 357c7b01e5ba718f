"""What a process takes of the machine, and how much it says."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import psutil

from trinity.api.v1 import buffer_pb2, explorer_pb2, synchronizer_pb2, trainer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.explorer_pb2_grpc import ExplorerServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.api.v1.trainer_pb2_grpc import TrainerServiceStub
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.stack import LocalStack

MEBIBYTE = 2**20
CALL_SECONDS = 30.0
PAUSE_SECONDS = 0.2
SERVICES = ("buffer", "synchronizer", "explorer", "trainer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """A service at one moment."""

    pid: int
    mebibytes: float
    num_files: int
    num_log_lines: int


def vitals_of(stack: LocalStack, job_dir: Path) -> dict[str, Vitals]:
    """Every service by its name."""
    return {name: _vitals(stack.pids[name], job_dir / "log" / f"{name}.log") for name in SERVICES}


def _vitals(pid: int, log_file: Path) -> Vitals:
    process = psutil.Process(pid)
    return Vitals(
        pid=pid,
        mebibytes=process.memory_info().rss / MEBIBYTE,
        num_files=process.num_fds(),
        num_log_lines=log_file.read_bytes().count(b"\n"),
    )


@dataclass(frozen=True, slots=True)
class Speed:
    """How long valid calls took."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 2]

    @property
    def p95(self) -> float:
        return sorted(self.seconds)[len(self.seconds) * 95 // 100]

    def __str__(self) -> str:
        median, p95, slowest = (1000 * s for s in (self.median, self.p95, max(self.seconds)))
        return (
            f"{len(self.seconds)} valid calls: median {median:.0f} ms, p95 {p95:.0f} ms, "
            f"slowest {slowest:.0f} ms"
        )


@dataclass(slots=True)
class ValidCalls:
    """Calls as a client makes them, again and again, and how long each took."""

    addresses: ServiceAddresses
    experiment_id: str
    seconds: list[float] = field(default_factory=list)

    @property
    def speed(self) -> "Speed":
        return Speed(self.seconds)

    @contextlib.asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Make them until the block ends; a call that fails or answers wrongly fails the block."""
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self._repeat())
            yield
            task.cancel()

    async def _repeat(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(PAUSE_SECONDS)

    async def once(self) -> None:
        """One call to each service, each on a new connection."""
        at = self.addresses
        for call in (self._synchronizer, self._buffer, self._explorer, self._trainer):
            begun = time.monotonic()
            await call(at)
            self.seconds.append(time.monotonic() - begun)

    async def _synchronizer(self, at: ServiceAddresses) -> None:
        async with grpc.aio.insecure_channel(at.synchronizer) as channel:
            request = synchronizer_pb2.GetExperimentRequest(experiment_id=self.experiment_id)
            answer = await SynchronizerServiceStub(channel).GetExperiment(
                request, timeout=CALL_SECONDS
            )
        assert answer.experiment.id == self.experiment_id

    async def _buffer(self, at: ServiceAddresses) -> None:
        async with grpc.aio.insecure_channel(at.buffer) as channel:
            request = buffer_pb2.GetBufferStatusRequest(experiment_id=self.experiment_id)
            answer = await BufferServiceStub(channel).GetBufferStatus(request, timeout=CALL_SECONDS)
        assert all(one.key.experiment_id == self.experiment_id for one in answer.stages)

    async def _explorer(self, at: ServiceAddresses) -> None:
        async with grpc.aio.insecure_channel(at.explorer) as channel:
            request = explorer_pb2.GetExplorerStatusRequest()
            answer = await ExplorerServiceStub(channel).GetExplorerStatus(
                request, timeout=CALL_SECONDS
            )
        assert answer.explorer_id

    async def _trainer(self, at: ServiceAddresses) -> None:
        async with grpc.aio.insecure_channel(at.trainer) as channel:
            request = trainer_pb2.GetTrainerStatusRequest()
            answer = await TrainerServiceStub(channel).GetTrainerStatus(
                request, timeout=CALL_SECONDS
            )
        assert answer.trainer_id
