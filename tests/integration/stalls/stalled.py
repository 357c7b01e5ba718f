"""A stack at work whose parts are held still, and what `trinity why` says of it."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpc
import psutil

from tests.integration.stalls.faults import FOLDER_VARIABLE
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import MODULES, model_free_stack
from tests.support.ranks import ranks_of
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.local.run_file import read_running
from trinity.run.local.stack import LocalStack
from trinity.runtime.rpc.channel import open_channel

NAMED_SECONDS = 120.0
"""Within which a cause has to be named."""
PATIENCE_SECONDS = 45.0
POLL_SECONDS = 0.25
EXPLORER = "tests.integration.stalls.explorer"


@dataclass(slots=True)
class Stalled:
    """What a test does to a stack, and sees of it."""

    stack: LocalStack
    job_dir: Path
    faults: Path

    async def why(self) -> Diagnosis:
        """What `trinity why` makes of it now."""
        running = read_running(self.job_dir)
        assert running is not None
        return diagnose(await gather(running, self.job_dir))

    async def ask(self, command: str) -> tuple[int, str]:
        """A command of `trinity` beside the run: its exit code and how its answer begins."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "trinity.cli.main", command),
            *("--job-dir", str(self.job_dir)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        answer, _ = await process.communicate()
        return await process.wait(), answer.decode().partition(":")[0]

    async def until_named(self, *words: str) -> Diagnosis:
        """The first verdict whose sentences have all these words; it has to come in time."""
        begun, seen = time.monotonic(), dict[str, None]()
        while time.monotonic() - begun < NAMED_SECONDS:
            verdict = await self.why()
            text = " ".join((verdict.text, *verdict.notes))
            if all(word in text for word in words):
                return verdict
            seen[f"{time.monotonic() - begun:.0f} s: {text}"] = None
            await asyncio.sleep(POLL_SECONDS)
        raise AssertionError(f"{words} not named within {NAMED_SECONDS:g} s: {[*seen]}")

    async def steps(self) -> int:
        """Steps trained by all stages that are not finished; -1 while nobody tells."""
        async with open_channel(self.stack.addresses.buffer) as channel:
            try:
                answer: pb.GetBufferStatusResponse = await BufferServiceStub(
                    channel
                ).GetBufferStatus(pb.GetBufferStatusRequest(), timeout=5.0)
            except grpc.aio.AioRpcError:
                return -1
        return sum(stage.trained_step for stage in answer.stages)

    async def until_steps(self, least: int) -> int:
        """Wait until so many steps are trained."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (now := await self.steps()) < least:
            assert time.monotonic() < deadline, f"{now} of {least} steps: {await self.why()}"
            await asyncio.sleep(POLL_SECONDS)
        return now

    async def until_progress(self) -> None:
        """Wait until two more steps are trained: the first may have been under way before."""
        await self.until_steps(max(await self.until_steps(0), 0) + 2)

    async def until_event(
        self, experiment: synchronizer_pb2.Experiment, kind: Literal["opened", "batch"]
    ) -> None:
        """Wait until the stage is open, or a batch of it is composed."""
        request = pb.WatchProgressRequest(
            tenant=experiment.tenant, experiment_id=experiment.id, after_event=0
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._has_event(request, kind):  # noqa: ASYNC110 (other processes set no event)
                await asyncio.sleep(POLL_SECONDS)

    async def _has_event(self, request: pb.WatchProgressRequest, kind: str) -> bool:
        """Once there is one; False while the buffer's tables are being made."""
        async with open_channel(self.stack.addresses.buffer) as channel:
            stream = BufferServiceStub(channel).WatchProgress(request, timeout=PATIENCE_SECONDS)
            try:
                async for answer in stream:
                    if any(event.WhichOneof("event") == kind for event in answer.events):
                        return True
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
        return False

    def rank(self) -> int:
        """The process that trains."""
        ranks = ranks_of(self.stack.pids["trainer"])
        assert ranks, "the trainer has no rank"
        return ranks[0].pid

    @contextmanager
    def stopped(self, name: str) -> Iterator[int]:
        """A part that stands still, with all that it has started, until the block ends."""
        pid = self.stack.pids[name]
        send(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            send(pid, signal.SIGCONT)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process and everything below it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            with suppress(ProcessLookupError):
                os.kill(one.pid, number)


@asynccontextmanager
async def stalled_stack(
    job_dir: Path, *, step_seconds: float = 0.1, max_restarts: int | None = None
) -> AsyncIterator[Stalled]:
    """A stack in which leases run out soon and faults can be switched on."""
    faults = job_dir / "faults"
    faults.mkdir(parents=True)
    environment = {
        "explorer": {
            FOLDER_VARIABLE: str(faults),
            "TRINITY_EXPLORER_LEASE_SECONDS": "2",
        },
        "trainer": {STEP_SECONDS_VARIABLE: str(step_seconds)},
    }
    async with model_free_stack(
        job_dir,
        modules={**MODULES, "explorer": EXPLORER},
        environment=environment,
        max_restarts=max_restarts,
    ) as stack:
        yield Stalled(stack, job_dir, faults)
