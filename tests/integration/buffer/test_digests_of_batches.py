"""Digests of batches: by their rows as they are handed out, and after those of the steps before."""

from pathlib import Path

import psycopg

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import mixed_plan, rollout_plan
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_retraining import again as again
from tests.integration.buffer.test_retraining import record
from tests.support import origin_by_hand as by_hand
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import query_pb2
from trinity.data.codec_checks import turn_digests
from trinity.runtime.rpc.channel import open_channel


def rows_by_hand(rows: list[pb.BatchRow]) -> bytes:
    """The digest of a batch with samples that are no answers of an engine, and rows of data."""
    return by_hand.batch(
        [
            turn_digests(row.experience)[-1]
            if row.HasField("experience")
            else by_hand.sha256_of(row.row_json.encode())
            for row in rows
        ]
    )


async def test_batches_of_both_kinds_are_chained_also_over_stages(
    process: BufferProcess, buffer: Buffer, again: Buffer, tmp_path: Path
) -> None:
    recorded = await record(buffer, mixed_plan(tmp_path))
    assert {row.WhichOneof("source") for row in recorded.batches[0]} == {"experience", "row_json"}
    lineage = [by_hand.ZEROS]
    for rows in recorded.batches:
        lineage.append(by_hand.version(lineage[-1], rows_by_hand(rows)))
    await again.open(recorded.stored(3, 3))
    begun = await again.begin()
    assert [one.lineage_sha256 for one in begun.checkpoints] == [b"\x05" * 32]
    head, _ = await again.batch(3)
    assert head.rows_sha256 == rows_by_hand(recorded.batches[2])
    async with open_channel(process.address) as channel:
        for step, calls in ((1, buffer), (2, buffer), (3, buffer), (3, again)):
            told, _ = await Looking.on(channel, calls.pb_key).step(step)
            assert told.rows_sha256 == rows_by_hand(recorded.batches[step - 1])
            assert (told.before_sha256, told.lineage_sha256) == (lineage[step - 1], lineage[step])
            if calls is buffer:
                assert told.weights_after.lineage_sha256 == b"\x06" * 32


async def test_a_batch_with_a_sample_of_an_earlier_release_has_no_digest(
    process: BufferProcess, buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)
    ready = query_pb2.ExperienceFilter(states=[query_pb2.EXPERIENCE_STATE_READY])
    async with open_channel(process.address) as channel:
        await Looking.on(channel, buffer.pb_key).until(6, ready)
    with psycopg.connect(process.dsn) as connection:
        earlier = "UPDATE buffer.experience SET turn_sha256 = NULL WHERE experiment_id = %s"
        assert connection.execute(earlier, [buffer.key.experiment_id]).rowcount >= 6
    head, rows = await buffer.batch(1)
    assert (head.rows_sha256, len(rows)) == (b"", 6)
    await buffer.report(1)
    await buffer.record(1)
    await buffer.finish_all((await buffer.lease()).assignments)
    _, rows = await buffer.batch(2)
    async with open_channel(process.address) as channel:
        told, _ = await Looking.on(channel, buffer.pb_key).step(2)
    assert told.before_sha256 == by_hand.ZEROS
    assert told.lineage_sha256 == by_hand.version(by_hand.ZEROS, rows_by_hand(rows))
