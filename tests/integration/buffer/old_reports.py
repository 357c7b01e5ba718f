"""What producers were told long ago, more than is forgotten at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

NUM_OLD_REPORTS = 4_000
_FILL = (
    "INSERT INTO buffer.commit_report (producer, sequence, state, reason, reported_at)"
    " SELECT %s, n, 'committed', repeat('x', 1900), now() - interval '2 days'"
    " FROM generate_series(1, %s) AS n"
)
_HOLD = (
    "SELECT 1 FROM buffer.commit_report WHERE producer = %s ORDER BY ctid DESC LIMIT 1 FOR UPDATE"
)
_COUNT = "SELECT count(*) FROM buffer.commit_report WHERE producer = %s"


def fill_with_old_reports(dsn: str, producer: str) -> None:
    """Four of them fill a page."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_FILL, [producer, NUM_OLD_REPORTS])


@contextmanager
def held_old_report(dsn: str, producer: str) -> Iterator[None]:
    """Nobody can delete the last one meanwhile."""
    with psycopg.connect(dsn) as connection:
        connection.execute(_HOLD, [producer])
        yield


def count_reports(dsn: str, producer: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(_COUNT, [producer]).fetchone()
    assert row is not None
    return int(row[0])
