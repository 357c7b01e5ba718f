"""Measures the limits of the broker and the database for the same bytes, without our code.

Two processes, as ours are: one publishes, the other fetches, stores by COPY, commits, acknowledges.
"""

import asyncio
import json
import os
import sys
import time
import uuid

import nats
import numpy as np
import psycopg
from nats.js.api import RetentionPolicy, StreamConfig

from benchmarks.buffer.worker import serve

STREAM, SUBJECT, DURABLE = "RAW", "raw.rows", "raw"
IN_FLIGHT = 16
FETCHED = 32
TABLE = """
DROP TABLE IF EXISTS public.raw_row;
CREATE TABLE public.raw_row (id uuid PRIMARY KEY, taken boolean NOT NULL, body bytea NOT NULL);
ALTER TABLE public.raw_row ALTER COLUMN body SET STORAGE EXTERNAL
"""
COPY = "COPY public.raw_row (id, taken, body) FROM STDIN (FORMAT BINARY)"
READ = "SELECT body FROM public.raw_row WHERE id = ANY(%s)"
TAKE = """
UPDATE public.raw_row SET taken = true WHERE id = ANY(ARRAY(
    SELECT id FROM public.raw_row WHERE NOT taken LIMIT %s FOR UPDATE SKIP LOCKED
)) RETURNING body
"""


class Raw:
    """Either of the two processes."""

    def __init__(self, dsn: str, nats_url: str) -> None:
        self._nats_url = nats_url
        self._connection = psycopg.connect(dsn)
        self._ids: list[uuid.UUID] = []

    async def connect(self) -> None:
        """Make the stream, or find it."""
        self._broker = await nats.connect(self._nats_url)
        self._stream = self._broker.jetstream()
        await self._stream.add_stream(
            StreamConfig(name=STREAM, subjects=[SUBJECT], retention=RetentionPolicy.WORK_QUEUE)
        )
        self._pull = await self._stream.pull_subscribe(SUBJECT, DURABLE)

    async def publish(
        self, size: int, count: int, packed: int, in_flight: int = IN_FLIGHT
    ) -> float:
        """So many rows, `packed` in a message; answers when it began, on a clock that all share."""
        body = os.urandom(size * packed)
        free = asyncio.Semaphore(in_flight)

        async def send() -> None:
            async with free:
                await self._stream.publish(SUBJECT, body)

        began = time.monotonic()
        await asyncio.gather(*(send() for _ in range(0, count, packed)))
        return began

    async def store(self, size: int, count: int) -> float:
        """Store so many rows in a fresh table; answers when the last of them was committed."""
        self._connection.execute(TABLE)
        self._connection.commit()
        self._ids = []
        while len(self._ids) < count:
            messages = await self._pull.fetch(FETCHED, timeout=30.0)
            self._copy(
                [m.data[i : i + size] for m in messages for i in range(0, len(m.data), size)]
            )
            for message in messages:
                await message.ack()
        return time.monotonic()

    def _copy(self, bodies: list[bytes]) -> None:
        ids = [uuid.uuid4() for _ in bodies]
        with self._connection.cursor() as cursor, cursor.copy(COPY) as copy:
            copy.set_types(["uuid", "bool", "bytea"])
            for identifier, body in zip(ids, bodies, strict=True):
                copy.write_row((identifier, False, body))
        self._connection.commit()
        self._ids += ids

    async def one_by_one(self, size: int, count: int) -> float:
        """Published, fetched, stored and acknowledged before the next; answers the seconds."""
        body = os.urandom(size)
        began = time.perf_counter()
        for _ in range(count):
            await self._stream.publish(SUBJECT, body)
            (message,) = await self._pull.fetch(1, timeout=30.0)
            self._copy([message.data])
            await message.ack()
        return time.perf_counter() - began

    def read(self, batch: int) -> list[float]:
        """The rows stored last by their ids, as numpy arrays; answers the seconds of each batch."""
        seconds = []
        for first in range(0, len(self._ids) - batch + 1, batch):
            began = time.perf_counter()
            self._arrays(READ, [self._ids[first : first + batch]])
            seconds.append(time.perf_counter() - began)
        return seconds

    def take(self, batch: int) -> list[float]:
        """All rows, each marked as taken; answers the seconds of each batch."""
        seconds = []
        for _ in range(len(self._ids) // batch):
            began = time.perf_counter()
            self._arrays(TAKE, [batch])
            self._connection.commit()
            seconds.append(time.perf_counter() - began)
        return seconds

    def _arrays(self, statement: str, values: list[object]) -> None:
        with self._connection.cursor(binary=True) as cursor:
            rows = cursor.execute(statement, values).fetchall()
        assert all(np.frombuffer(body, dtype=np.uint8).size for (body,) in rows)

    def most_mb(self) -> float:
        """The most memory that this process ever took."""
        with open("/proc/self/status") as status:
            (line,) = (line for line in status if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024

    def wake(self, count: int) -> list[float]:
        """Returns the seconds from one session's notification to its arrival in another."""
        seconds = []
        with psycopg.connect(
            self._connection.info.dsn + f" password={self._connection.info.password}",
            autocommit=True,
        ) as other:
            other.execute("LISTEN raw")
            for _ in range(count):
                began = time.perf_counter()
                self._connection.execute("NOTIFY raw")
                self._connection.commit()
                next(iter(other.notifies()))
                seconds.append(time.perf_counter() - began)
        return seconds


async def _main(dsn: str, nats_url: str) -> None:
    raw = Raw(dsn, nats_url)
    await raw.connect()
    await serve(raw)


if __name__ == "__main__":
    asyncio.run(_main(**json.loads(sys.argv[1])))
