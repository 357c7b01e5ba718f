"""A broker, a database and the buffer's process, as `trinity run` starts them, on a few cores."""

import os
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.buffer.worker import BenchmarkWorker, started
from tests.integration.buffer.process import BufferProcess
from tests.support.infra_fixtures import running
from trinity.config.plan.stage_plan import StagePlan
from trinity.run.local.addresses import free_port
from trinity.run.local.nats import NatsServer
from trinity.run.local.postgres import embedded_postgres
from trinity.runtime.security.broker import ADMIN
from trinity.runtime.security.secret_files import DATABASE, SUPERUSER, SecretFiles
from trinity.types import StageKey

STAGE = "rft"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Everything real, with our two clients in separate processes."""

    buffer: BufferProcess
    dsn: str
    admin_dsn: str
    nats_url: str
    explorer: BenchmarkWorker
    trainer: BenchmarkWorker

    async def open(self, plan: StagePlan) -> dict[str, str]:
        """Begin a fresh stage; answers its key."""
        key = asdict(new_key())
        await self.trainer.call("open", key=key, plan_json=plan.model_dump_json())
        return key


def new_key() -> StageKey:
    """A stage of an experiment that is not there yet."""
    return StageKey(tenant="default", experiment_id=str(uuid.uuid4()), stage=STAGE)


def pin(cores: set[int]) -> None:
    """Keep this process, and all that it starts from now on, on these cores."""
    os.sched_setaffinity(0, cores)


@asynccontextmanager
async def running_stack(root: Path) -> AsyncIterator[Stack]:
    """Starts a stack with its data in `root`; database and broker write to disk as in use."""
    secrets = SecretFiles(root / "secrets")
    postgres = embedded_postgres(root / "postgres", secrets, free_port())
    broker = NatsServer(
        folder=root / "nats", secrets=secrets, port=free_port(), monitor_port=free_port()
    )
    dsn, nats_url = postgres.dsn("buffer", DATABASE), broker.url(ADMIN)
    async with AsyncExitStack() as stack:
        stack.enter_context(running(postgres.prepare_process(root / "postgres.log")))
        stack.enter_context(running(broker.prepare_process(root / "nats.log")))
        await postgres.wait_ready()
        await broker.wait_ready()
        buffer = BufferProcess(dsn, nats_url, root / "buffer.log")
        stack.callback(buffer.kill)
        await buffer.start()
        explorer = started(
            "benchmarks.buffer.explorer", address=buffer.address, nats_url=broker.url("explorer")
        )
        trainer = started("benchmarks.buffer.trainer", address=buffer.address)
        yield Stack(
            buffer=buffer,
            dsn=dsn,
            admin_dsn=postgres.dsn(SUPERUSER, DATABASE),
            nats_url=nats_url,
            explorer=await stack.enter_async_context(explorer),
            trainer=await stack.enter_async_context(trainer),
        )
