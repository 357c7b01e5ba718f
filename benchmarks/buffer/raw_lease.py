"""Measures the limits of the database and a socket for a lease, without our code.

Two processes, as ours are: one asks, over loopback; the other marks rows as leased by a statement
that commits, reads the task of each by its id, and hands them over.
"""

import asyncio
import json
import socket
import struct
import sys
import time

import psycopg
from psycopg.types.string import ByteaBinaryLoader

from benchmarks.buffer.worker import serve

BUFFERED = 1024 * 1024
COUNT = struct.Struct("<I")
TABLES = """
DROP TABLE IF EXISTS public.raw_task, public.raw_assignment;
CREATE TABLE public.raw_task (id bigint PRIMARY KEY, body text NOT NULL);
CREATE TABLE public.raw_assignment (
    id uuid PRIMARY KEY, task_id bigint NOT NULL, token uuid, until timestamptz
)
"""
TASKS = "INSERT INTO public.raw_task SELECT id, %s FROM generate_series(0, %s - 1) AS id"
ASSIGNMENTS = """
INSERT INTO public.raw_assignment (id, task_id)
SELECT gen_random_uuid(), number %% %s FROM generate_series(0, %s - 1) AS number
"""
MARK = """
UPDATE public.raw_assignment SET token = gen_random_uuid(), until = now() + interval '900 s'
WHERE id = ANY(ARRAY(
    SELECT id FROM public.raw_assignment WHERE token IS NULL LIMIT %s FOR UPDATE SKIP LOCKED
)) RETURNING task_id
"""
READ = "SELECT body FROM unnest(%s::bigint[]) AS wanted JOIN public.raw_task ON id = wanted"


class RawLease:
    """Either of the two processes."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.adapters.register_loader("text", ByteaBinaryLoader)
        self._listener = socket.create_server(("127.0.0.1", 0))

    def make(self, task: str, num_tasks: int, num_assignments: int) -> int:
        """Stores the leases; answers the port that serves them."""
        self._connection.execute(TABLES)
        self._connection.execute(TASKS, [task, num_tasks])
        self._connection.execute(ASSIGNMENTS, [num_tasks, num_assignments])
        self._connection.execute("ANALYZE public.raw_task, public.raw_assignment")
        return int(self._listener.getsockname()[1])

    def grant(self) -> None:
        """Answer a single process that asks, until it goes away."""
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rwb", buffering=BUFFERED) as stream:
            while asked := stream.read(COUNT.size):
                bodies = self._mark(*COUNT.unpack(asked))
                stream.write(struct.pack(f"<{len(bodies)}I", *map(len, bodies)))
                stream.writelines(bodies)
                stream.flush()

    def _mark(self, count: int) -> list[bytes]:
        with self._connection.cursor(binary=True) as cursor:
            marked = cursor.execute(MARK, [count], prepare=True).fetchall()
            ids = [task_id for (task_id,) in marked]
            return [body for (body,) in cursor.execute(READ, [ids], prepare=True).fetchall()]

    def lease(self, port: int, count: int, calls: int) -> list[float]:
        """Ask so many times; answers the seconds of each call."""
        seconds = []
        with (
            socket.create_connection(("127.0.0.1", port)) as connection,
            connection.makefile("rwb", buffering=BUFFERED) as stream,
        ):
            for _ in range(calls):
                began = time.perf_counter()
                stream.write(COUNT.pack(count))
                stream.flush()
                lengths = struct.unpack(f"<{count}I", stream.read(4 * count))
                bodies = [stream.read(length) for length in lengths]
                seconds.append(time.perf_counter() - began)
                assert len(bodies) == count and all(bodies)
        return seconds


if __name__ == "__main__":
    asyncio.run(serve(RawLease(**json.loads(sys.argv[1]))))
