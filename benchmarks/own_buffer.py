"""A buffer's process with a broker and a database of its own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.integration.buffer.process import BufferProcess, start_anew
from tests.support.infra_fixtures import running
from trinity.local.addresses import free_port
from trinity.local.nats import NatsServer
from trinity.local.postgres import DATABASE, embedded_postgres
from trinity.security.broker import ADMIN
from trinity.security.secret_files import SecretFiles


@asynccontextmanager
async def own_buffer(root: Path) -> AsyncIterator[BufferProcess]:
    """Runs a buffer with its data in `root` until the block ends."""
    secrets = SecretFiles(root / "secrets")
    postgres = embedded_postgres(root / "postgres", secrets, free_port())
    broker = NatsServer(
        folder=root / "nats", secrets=secrets, port=free_port(), monitor_port=free_port()
    )
    with (
        running(postgres.prepare_process(root / "postgres.log")),
        running(broker.prepare_process(root / "nats.log")),
    ):
        await postgres.wait_ready()
        await broker.wait_ready()
        process = BufferProcess(
            postgres.dsn("buffer", DATABASE),
            broker.url(ADMIN),
            root / "buffer.log",
            begin=start_anew,
        )
        try:
            await process.start()
            yield process
        finally:
            process.kill()
