"""Runs the synchronizer (`python -m services.synchronizer`), or only migrates its schema."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from services.synchronizer import tables
from services.synchronizer.operations import Operations
from services.synchronizer.servicer import SERVICE_NAME, SynchronizerServicer
from services.synchronizer.settings import SynchronizerSettings
from services.synchronizer.store.database import CHANNEL, SynchronizerDatabase
from services.synchronizer.watching import WatchStreams
from trinity.api.v1.synchronizer_pb2_grpc import add_SynchronizerServiceServicer_to_server
from trinity.runtime.loops import LoopKeeper
from trinity.runtime.migrations import Migrations
from trinity.runtime.notifications import Listener
from trinity.runtime.postgres import async_engine, report_health, wait_until_up
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.rpc.runner import USER_ERROR, run_service
from trinity.runtime.rpc.server import Servicer, serve

MIGRATIONS = Migrations(
    folder=Path(__file__).parent / "migrations",
    schema=tables.SCHEMA,
    program="python -m services.synchronizer migrate",
)


async def migrate(settings: SynchronizerSettings, stop: asyncio.Event) -> None:
    """Migrates the schema to the newest revision."""
    await _prepare(settings, stop, MIGRATIONS.upgrade)


async def run(settings: SynchronizerSettings, stop: asyncio.Event) -> None:
    """Serves until `stop`; open streams end first, so that the drain does not wait for them."""
    ready_schema = MIGRATIONS.upgrade if settings.migrate_on_start else MIGRATIONS.check_newest
    if not await _prepare(settings, stop, ready_schema):
        return
    dsn = settings.postgres_dsn.get_secret_value()
    engine = async_engine(
        dsn,
        tables.SCHEMA,
        pool_size=settings.postgres_pool_size,
        idle_transaction_seconds=settings.idle_transaction_seconds,
    )
    async_commit = async_engine(
        dsn, tables.SCHEMA, pool_size=1, settings={"synchronous_commit": "off"}
    )
    probe = async_engine(dsn, tables.SCHEMA, pool_size=1, max_overflow=0)
    try:
        async with Listener(dsn, CHANNEL) as listener:
            watching = WatchStreams(listener)
            members = settings.quota("tenant_members", "members that report")
            operations = Operations(SynchronizerDatabase(engine, async_commit), members)
            servicer = _servicer(operations, watching)
            async with serve(settings, [servicer], tenant_of=operations.tenant_of) as server:
                keeper = LoopKeeper(
                    waits=WaitRegistry(owner="synchronizer", on_change=lambda: None),
                    report=server.health.set_loop,
                )
                report = partial(report_health, probe, server.health, stop)
                await keeper.keep_running("health", report)
                watching.close_streams()
    finally:
        for opened in (engine, async_commit, probe):
            await opened.dispose()


def _servicer(operations: Operations, watching: WatchStreams) -> Servicer:
    return Servicer(
        name=SERVICE_NAME,
        add=add_SynchronizerServiceServicer_to_server,
        implementation=SynchronizerServicer(operations=operations, watching=watching),
    )


async def _prepare(
    settings: SynchronizerSettings, stop: asyncio.Event, ready_schema: Callable[[str], None]
) -> bool:
    """Waits for the database and prepares its schema; False if stopped before."""
    dsn = settings.postgres_dsn.get_secret_value()
    if not await wait_until_up(dsn, settings.postgres_wait_seconds, stop):
        return False
    await asyncio.to_thread(ready_schema, dsn)
    return True


def main() -> int:
    """Runs the command that the arguments name."""
    match sys.argv[1:]:
        case []:
            return run_service("synchronizer", SynchronizerSettings, run)
        case ["migrate"]:
            return run_service("synchronizer", SynchronizerSettings, migrate)
        case arguments:
            sys.stderr.write(f"synchronizer: unknown arguments {arguments}; try `migrate`\n")
            return USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
