"""Experiments whose tasks have images: each is there once, for as long as it is used.

One that nothing uses goes meanwhile, and a client brings tasks with the same images.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psycopg
from pydantic import JsonValue

from services.buffer.store.experiences import CODEC
from tests.chaos.arena import RETRY_SECONDS, Arena
from tests.support.images import data_url, png
from trinity.api.v1.experience_pb2 import Experience
from trinity.client import AsyncTasksets
from trinity.data.codec import experience_from_proto
from trinity.data.images import image_of

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
PATIENCE_SECONDS = 300.0
IMAGES = [png((number, 9, 9)) for number in range(16)]
ROWS = [
    {"prompt": f"{i}+{i}=", "response": str(2 * i), "image": data_url(IMAGES[i % len(IMAGES)])}
    for i in range(4 * len(IMAGES))
]
UNUSED = image_of(png((1, 2, 3)))
INSERTED = """
    INSERT INTO media VALUES ('default', %s, 0, %s, 'image/png', %s, now() - interval '25 hours')
    ON CONFLICT DO NOTHING
"""
STORED = """
    SELECT sha256, string_agg(body, ''::bytea ORDER BY number) FROM media WHERE tenant = 'default'
    GROUP BY sha256
"""
SAMPLES = """
    SELECT body, 'segment/' || segment_id FROM payload WHERE experiment_id = %s AND codec = %s
"""


def taskset_in(folder: Path) -> dict[str, JsonValue]:
    """A taskset with images, in a file."""
    path = folder / "seen.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return {"path": str(path), "format": {"image_key": "image"}}


async def bring_images(arena: Arena, name: str) -> list[str]:
    """Submits the tasks as a client, through all deaths; returns the findings."""
    async with AsyncTasksets(
        arena.stack.addresses.buffer, patience_seconds=PATIENCE_SECONDS
    ) as tasksets:
        told = await tasksets.submit(name, ROWS)
    is_whole = (told.num_stored, told.num_refused) == (len(ROWS), 0)
    return [] if is_whole else [f"{told.num_stored} rows of a client are stored"]


def insert_unused(arena: Arena) -> None:
    """Stores an image that nothing has used for a day."""
    image = [UNUSED.ref.sha256, UNUSED.ref.size, UNUSED.content]
    when_up(arena, lambda connection: connection.execute(INSERTED, image))


def wrong_images(arena: Arena, experiment_id: str) -> list[str]:
    """Images that are not there once and whole, or not used by a sample that has them."""
    until = time.monotonic() + PATIENCE_SECONDS
    while when_up(arena, _is_unused_there):
        if time.monotonic() > until:
            return ["an image that nothing uses stays"]
        time.sleep(RETRY_SECONDS)
    return when_up(arena, lambda connection: _wrong_images(connection, experiment_id))


def when_up(arena: Arena, act: Callable[[Connection], T]) -> T:
    """Returns the result of an act in the buffer's database, as soon as it answers."""
    while True:
        try:
            with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
                return act(connection)
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):  # it starts
            time.sleep(RETRY_SECONDS)


def _is_unused_there(connection: Connection) -> bool:
    found = connection.execute("SELECT 1 FROM media WHERE sha256 = %s", [UNUSED.ref.sha256])
    return found.fetchone() is not None


def _wrong_images(connection: Connection, experiment_id: str) -> list[str]:
    stored: dict[bytes, bytes] = dict(connection.execute(STORED).fetchall())
    used = set(connection.execute("SELECT sha256, used_by FROM media_use").fetchall())
    samples = connection.execute(SAMPLES, [experiment_id, CODEC]).fetchall()
    wrong = [] if sorted(stored.values()) == sorted(IMAGES) else [f"{len(stored)} are stored"]
    wrong += [own.hex() for own, body in stored.items() if hashlib.sha256(body).digest() != own]
    wrong += [] if samples else ["no sample is left"]
    for body, segment in samples:
        [image] = experience_from_proto(Experience.FromString(body)).blobs
        if (image.sha256, segment) not in used:
            wrong.append(f"{image.sha256.hex()} is not used by {segment}")
    return wrong
