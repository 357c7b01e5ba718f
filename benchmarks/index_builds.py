"""The time for which writers wait while an upgrade builds an index over stored rows.

    python -m benchmarks.index_builds [--rows 1000000] [--json FILE]

A database of its own is migrated to the revision before each of two indexes, filled by SQL, and
migrated on, while a client inserts rows one by one. What counts is the longest insert: a build
keeps inserts out until the upgrade is committed. The documented order of an upgrade stops the
services before, so this is the time by which they come back later.
"""

import argparse
import asyncio
import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from services.buffer.migrations import MIGRATIONS as BUFFER
from services.synchronizer.__main__ import MIGRATIONS as SYNCHRONIZER
from tests.support.infra_fixtures import running
from trinity.local.addresses import free_port
from trinity.local.postgres import DATABASE, embedded_postgres
from trinity.runtime.migrations import Migrations
from trinity.runtime.postgres import libpq_dsn
from trinity.security.secret_files import SecretFiles

ROOT = Path(__file__).resolve().parents[1]
EXPERIENCES = """
INSERT INTO experience (tenant, experiment_id, stage, experience_id, assignment_id, explore_step,
    position, run, attempt, step, suffix, revision, segment_id, payload_id, state, reason, reward,
    version_min, version_max, num_tokens, response_length, finish_reason, metrics, content_hash,
    created_at)
SELECT 'default', '00000000-0000-0000-0000-000000000001', 'rft', gen_random_uuid(),
    gen_random_uuid(), n / 512, n / 8 %% 64, n %% 8, 0, 0, '', 1, 1, gen_random_uuid(), 'consumed',
    '', 0.5, n / 512, n / 512, 600, 500, 'stop', '{"accuracy": 0.5, "format": 1.0}',
    decode(repeat('ab', 32), 'hex'), now()
FROM generate_series(%s::bigint, %s::bigint) n
"""
WAITS = """
INSERT INTO closed_wait
SELECT gen_random_uuid(), n, NULL, 'default', 'trainer', '10.0.0.1:50053', 'rft', 'batch',
    'buffer', 'the rollouts of the batch are under way', 1.5, now() - n * interval '1 second'
FROM generate_series(%s::bigint, %s::bigint) n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """An upgrade that builds an index, and what fills its table."""

    index: str
    migrations: Migrations
    account: str
    before: str
    after: str
    fill: str


BUILDS = (
    Build(
        index="experience_version_ix",
        migrations=BUFFER,
        account="buffer",
        before="0026",
        after="0027",
        fill=EXPERIENCES,
    ),
    Build(
        index="closed_wait_ended_at_index",
        migrations=SYNCHRONIZER,
        account="synchronizer",
        before="0019",
        after="0020",
        fill=WAITS,
    ),
)


@dataclass(slots=True, kw_only=True)
class Inserts:
    """Times of a client that inserts one row after the other."""

    num_rows: int = 0
    longest_seconds: float = 0.0
    is_over: threading.Event = field(default_factory=threading.Event)

    def insert(self, connection: psycopg.Connection, fill: str) -> None:
        """Inserts a row and counts the time for it."""
        begun = time.perf_counter()
        connection.execute(fill.encode(), (1, 1))
        self.num_rows += 1
        self.longest_seconds = max(self.longest_seconds, time.perf_counter() - begun)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/index_builds.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="index-builds-") as folder:
        measured = asyncio.run(measure(Path(folder), given.rows))
    record = {
        "rows": given.rows,
        "processors": os.cpu_count(),
        "load_of_the_machine": os.getloadavg()[0],
        "builds": measured,
    }
    given.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


async def measure(root: Path, num_rows: int) -> list[dict[str, object]]:
    """Starts a database and makes all builds on it."""
    postgres = embedded_postgres(root / "postgres", SecretFiles(root / "secrets"), free_port())
    with running(postgres.prepare_process(root / "postgres.log")):
        await postgres.wait_ready()
        found = []
        for build in BUILDS:
            dsn = postgres.dsn(build.account, DATABASE)
            found.append(await asyncio.to_thread(measure_build, build, dsn, num_rows))
        return found


def measure_build(build: Build, dsn: str, num_rows: int) -> dict[str, object]:
    """Fills the table, and upgrades while rows are inserted."""
    build.migrations.upgrade(dsn, build.before)
    with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
        connection.execute(build.fill.encode(), (1, num_rows))
        table = build.fill.split()[2]
        size = connection.execute("SELECT pg_table_size(%s::regclass)", [table]).fetchone()
        assert size is not None
    with inserting(build, dsn) as quiet:
        time.sleep(2)  # the time that is measured
    with inserting(build, dsn) as inserts:
        begun = time.perf_counter()
        build.migrations.upgrade(dsn, build.after)
        seconds = time.perf_counter() - begun
    return {
        "index": build.index,
        "table_mib": round(size[0] / 2**20),
        "upgrade_seconds": round(seconds, 3),
        "longest_insert_seconds": round(inserts.longest_seconds, 3),
        "longest_insert_seconds_without": round(quiet.longest_seconds, 3),
    }


@contextmanager
def inserting(build: Build, dsn: str) -> Iterator[Inserts]:
    """Inserts rows beside the block."""
    inserts = Inserts()

    def work() -> None:
        with psycopg.connect(libpq_dsn(dsn), autocommit=True) as connection:
            while not inserts.is_over.wait(0.002):
                inserts.insert(connection, build.fill)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield inserts
    finally:
        inserts.is_over.set()
        thread.join()
    assert inserts.num_rows > 0


if __name__ == "__main__":
    main()
