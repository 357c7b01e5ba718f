"""Lets time pass for single rows, so that what takes days happens within an experiment.

Which rows is the caller's to decide, not the clock's: with a short `buffer.feedback_timeout` a
process that is slow to come back would change what becomes of an experiment.
"""

from collections.abc import Sequence

import psycopg

TIMEOUT_SECONDS = 86_400
"""`buffer.feedback_timeout` of experiments that somebody visits."""
SAMPLES = """
    UPDATE experience SET created_at = created_at - interval '2 days'
    WHERE experiment_id = %s AND experience_id = ANY(%s::uuid[])
"""
TASKSET = (
    "UPDATE taskset_upload SET last_sent_at = last_sent_at - interval '8 days'"
    " WHERE taskset_id = %s",
    "UPDATE taskset SET created_at = created_at - interval '8 days' WHERE taskset_id = %s",
)


async def age_samples(database: str, experiment_id: str, ids: Sequence[str]) -> None:
    """Let samples have waited for longer than `TIMEOUT_SECONDS`."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        await connection.execute(SAMPLES, [experiment_id, list(ids)])


async def age_taskset(database: str, taskset_id: str) -> None:
    """Let an upload have stood still for longer than a week."""
    async with await psycopg.AsyncConnection.connect(database) as connection:
        for query in TASKSET:
            await connection.execute(query, [taskset_id])
