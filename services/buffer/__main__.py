"""The buffer's process: `python -m services.buffer`, and `python -m services.buffer migrate`."""

import asyncio
import sys

from services.buffer.handlers.composing import Composer
from services.buffer.handlers.settling import Settler
from services.buffer.ingest import Ingest
from services.buffer.migrations import MIGRATIONS
from services.buffer.pipeline import Pipeline
from services.buffer.servicer import BufferServicer
from services.buffer.servicer.polling import Poller
from services.buffer.settings import BufferSettings, MigrationSettings
from services.buffer.store.database import CHANNEL, Database
from services.buffer.stream import RunStream, connect
from services.buffer.tasksets import TasksetLibrary
from services.buffer.wire import decode_sample
from trinity.api.v1 import buffer_pb2, buffer_pb2_grpc
from trinity.errors import Unavailable
from trinity.notifications import Listener
from trinity.postgres import async_engine, ping, wait_until_up
from trinity.rpc.health import Health
from trinity.rpc.runner import run_service
from trinity.rpc.server import Servicer, serve

SERVICE = buffer_pb2.DESCRIPTOR.services_by_name["BufferService"].full_name
HEALTH_SECONDS = 1.0


async def run_buffer(settings: BufferSettings, stop: asyncio.Event) -> None:
    """Serve until told to stop."""
    dsn = settings.postgres_dsn.get_secret_value()
    await wait_until_up(dsn, settings.connect_seconds)
    prepare = MIGRATIONS.upgrade if settings.migrate_on_start else MIGRATIONS.check
    await asyncio.to_thread(prepare, dsn)
    nats_url = settings.nats_url.get_secret_value()
    engine = async_engine(dsn, "buffer")
    try:
        async with (
            connect(nats_url, settings.connect_seconds) as client,
            Listener(dsn, CHANNEL) as listener,
        ):
            stream = RunStream(client, settings.stream_max_bytes)
            await _serve(settings, stop, Database(engine), listener, stream)
    finally:
        await engine.dispose()


async def _serve(
    settings: BufferSettings,
    stop: asyncio.Event,
    database: Database,
    listener: Listener,
    stream: RunStream,
) -> None:
    """Run the server and the two workers; a worker that dies takes the process with it."""
    poller = Poller(listener)
    ingest = Ingest(
        database=database,
        stream=stream,
        settler=Settler(settings.segment_max_rows),
        fetch_messages=settings.fetch_messages,
        bound=asyncio.Event(),
    )
    servicer = BufferServicer(
        database=database,
        poller=poller,
        library=TasksetLibrary(database),
        composer=Composer(decode_sample),
        stream=stream,
    )
    await listener.wait_connected()
    async with asyncio.TaskGroup() as workers:
        tasks = [
            workers.create_task(ingest.run(), name="ingest"),
            workers.create_task(
                Pipeline(database=database, listener=listener).run(), name="pipeline"
            ),
        ]
        async with serve(settings, [_served(servicer)]) as server:
            tasks.append(
                workers.create_task(_watch_health(server.health, database, ingest, stream))
            )
            await stop.wait()
            poller.close()
        for task in tasks:
            task.cancel()


def _served(servicer: BufferServicer) -> Servicer:
    add = buffer_pb2_grpc.add_BufferServiceServicer_to_server
    return Servicer(name=SERVICE, add=add, implementation=servicer)


async def _watch_health(
    health: Health, database: Database, ingest: Ingest, stream: RunStream
) -> None:
    """Ready means: the database answers, and results are taken from the stream."""
    while True:
        try:
            await ping(database.engine)
        except Unavailable as error:
            await health.set_ready(False, str(error))
        else:
            bound = ingest.bound.is_set() and stream.is_connected
            await health.set_ready(bound, "the broker does not answer")
        await asyncio.sleep(HEALTH_SECONDS)


async def migrate(settings: MigrationSettings, _stop: asyncio.Event) -> None:
    """Bring the schema to the newest revision and end."""
    dsn = settings.postgres_dsn.get_secret_value()
    await wait_until_up(dsn, settings.connect_seconds)
    await asyncio.to_thread(MIGRATIONS.upgrade, dsn)


def main() -> int:
    """Serve, or migrate when the first argument says so; answers the exit code."""
    match sys.argv[1:]:
        case []:
            return run_service("buffer", BufferSettings, run_buffer)
        case ["migrate"]:
            return run_service("buffer", MigrationSettings, migrate)
        case _:
            sys.stderr.write("usage: python -m services.buffer [migrate]\n")
            return 2


if __name__ == "__main__":
    sys.exit(main())
