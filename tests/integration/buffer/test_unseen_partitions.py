"""A session of the database that does not know of a partition loses nothing that is in it.

A session which learns of the partitions while another attaches one may not see that one. Here
none does: it is detached.
"""

from pathlib import Path

import psycopg

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_feedback import awaiting, explored, give, plan_of, reward
from tests.integration.buffer.test_retention import begin, train
from trinity.api.v1 import query_pb2 as pb

SEGMENT = "SELECT segment_id FROM stage WHERE experiment_id = %s"


def hide(process: BufferProcess, buffer: Buffer) -> str:
    """The partition that the stage writes to; its name."""
    with psycopg.connect(process.dsn, autocommit=True) as connection:
        row = connection.execute(SEGMENT, [buffer.key.experiment_id]).fetchone()
        assert row is not None
        name = f"payload_{row[0]}"
        connection.execute(f"ALTER TABLE payload DETACH PARTITION {name}")
        return name


async def test_what_is_written_and_read_does_not_need_to_be_seen_as_a_whole(
    process: BufferProcess, buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await begin(buffer, rollout_plan(tmp_path, num_tasks=12, total_steps=4))
    await train(buffer, 1, saved=False)
    hide(process, buffer)
    await train(buffer, 2)
    _, rows = await buffer.batch(1)
    assert len(rows) == ROWS
    records = await looking.list(with_content=True)
    assert len(records) == 2 * ROWS
    assert all(one.HasField("content") for one in records)


async def test_contents_are_deleted_wherever_they_are(
    process: BufferProcess, buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await begin(buffer, rollout_plan(tmp_path, num_tasks=12, total_steps=4))
    await buffer.finish_all((await buffer.lease()).assignments)
    name = hide(process, buffer)
    records = await looking.list()
    answer = await looking.delete(pb.ExperienceFilter(experience_ids=[records[0].id]), "private")
    assert answer.num_bytes > 0
    with psycopg.connect(process.dsn) as connection:
        left = connection.execute(f"SELECT count(*) FROM {name}").fetchone()
    assert left == (ROWS - 1,)


async def test_a_later_reward_is_stored_wherever_it_belongs(
    process: BufferProcess, buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    await explored(buffer, plan_of(tmp_path), None, None)
    hide(process, buffer)
    waiting = await awaiting(looking)
    answer = await give(looking, *(reward(one, 1.0) for one in waiting))
    assert (answer.num_set, list(answer.refused)) == (ROWS, [])
