"""Experiments that also write their experiences to a file or a database, and what lies there."""

import asyncio
import json
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

import psycopg
from psycopg.errors import DuplicateDatabase, UniqueViolation

from tests.chaos.arena import Arena
from tests.chaos.checks import Findings
from tests.chaos.snapshot import Snapshot
from trinity.runtime.security.secret_files import SUPERUSER

CATCH_UP_SECONDS = 60.0
ASKED = "SELECT experience_id FROM experience ORDER BY id"
DATABASE = "elsewhere"


def folder_of(arena: Arena, name: str) -> str:
    """A folder of JSON lines."""
    return str(arena.root / name / "made")


def sqlite_of(arena: Arena, name: str) -> str:
    """A SQLite file."""
    return f"sqlite:///{arena.root / name / 'made.db'}"


def postgres_of(arena: Arena, name: str) -> str:
    """A schema of another database on the arena's server."""
    own = arena.secret("buffer-postgres-dsn")
    password = arena.secret(f"postgres-{SUPERUSER}-password")
    with (
        suppress(DuplicateDatabase, UniqueViolation),  # others may make it at this moment
        psycopg.connect(own, user=SUPERUSER, password=password, autocommit=True) as connection,
    ):
        connection.execute(f"CREATE DATABASE {DATABASE} OWNER buffer")
    schema = name.replace("-", "_")
    with psycopg.connect(own, dbname=DATABASE) as connection:
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    return f"{own.rpartition('/')[0]}/{DATABASE}?options=-csearch_path%3D{schema}"


PLACES: Mapping[str, Callable[[Arena, str], str]] = {
    "sink_file": folder_of,
    "sink_sqlite": sqlite_of,
    "sink_sql": postgres_of,
}


async def differences(place: str, snapshot: Snapshot) -> Findings:
    """Compares the place with the samples that won, after it had time to catch up."""
    won = {
        (one.assignment_id, one.run, one.attempt) for one in snapshot.attempts if one.state == "won"
    }
    wanted = {
        one.id
        for one in snapshot.samples
        if not one.revision and (one.assignment_id, one.run, one.attempt) in won
    }
    written = await asyncio.to_thread(_written_at_last, place, wanted)
    found = {
        "sink_has_all": [f"{one} is not in {place}" for one in wanted.difference(written)],
        "sink_has_none_twice": [
            f"{one} is in {place} {times} times"
            for one, times in Counter(written).items()
            if times > 1
        ],
        "sink_has_only_these": [f"{one} is in {place}" for one in {*written} - wanted],
    }
    return {check: sentences for check, sentences in found.items() if sentences}


def _written_at_last(place: str, wanted: set[str]) -> list[str]:
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while not wanted <= {*(written := _written(place))} and time.monotonic() < deadline:
        time.sleep(0.2)
    return written


def _written(place: str) -> list[str]:
    if place.startswith("sqlite:///"):
        with closing(sqlite3.connect(place.removeprefix("sqlite:///"))) as connection:
            return [row[0] for row in connection.execute(ASKED)]
    if place.startswith("postgresql://"):
        with psycopg.connect(place) as connection:
            return [row[0] for row in connection.execute(ASKED)]
    lines = Path(place, "experiences.jsonl").read_text().splitlines()
    return [str(json.loads(line)["id"]) for line in lines]
