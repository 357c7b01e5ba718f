"""Malformed messages on the stream are put away with a reason, and the run goes on."""

import uuid
from random import Random

import psycopg
import pytest

from services.buffer.store.reports import (
    MAX_BODY_BYTES,
    MAX_DEAD_LETTERS,
    DeadLetter,
    insert_dead_letters,
)
from tests.integration.hostile.arena import Arena
from tests.integration.hostile.messages import Fuzzer, Known
from tests.integration.hostile.publishing import (
    HEADERS,
    PRODUCER,
    Publisher,
    fate,
    packed,
    publisher,
    result,
    subject_of,
)
from tests.integration.hostile.victim import STAGE, known_values, leased
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import experience_pb2 as pb
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction
from trinity.types import StageKey

pytestmark = pytest.mark.asyncio(loop_scope="package")

BATCH = pb.DESCRIPTOR.message_types_by_name["RunResultBatch"]
NUM_FUZZED = 300
NUM_GARBAGE = 2_000
NUM_LINES = 20
GROWTH_MEBIBYTES = 64
SUBJECTS = (
    *(b"trinity.runs.x", b"trinity.runs.a\x00b", b"trinity.runs.\xff\xfe", b"trinity.runs.a\x0bb"),
    *(b"trinity.runs.\x0c", b"trinity.runs.a\x85b", b"trinity.runs." + b"\xf0\x9f\x92\xa5" * 700),
    *(b"trinity.runs.default.%s.rft" % str(uuid.uuid4()).encode(), b"trinity.runs.a.b.c.d"),
)


async def send_malformed(
    to: Publisher, key: StageKey, own: buffer_pb2.Assignment, known: Known
) -> None:
    """Everything that an explorer may publish and should not."""
    subject, random = subject_of(key), Random(1)
    fuzzer = Fuzzer(1, known)
    good = packed(result(key, own, 0, 1_000))
    for odd in SUBJECTS:
        await to.publish(odd, good)
    for headers in HEADERS:
        await to.publish(subject, b"x", headers)
    for _ in range(NUM_FUZZED):
        await to.publish(subject, fuzzer.request(BATCH)[:900_000])
    for place in range(1, len(good), 7):
        await to.publish(subject, good[:place])
        await to.publish(subject, good + good[:place])
    for digest in (b"\x01" * 32, b"\x01" * 31, b"\x01" * 50_000):
        reference = pb.RunResultBatch(producer=PRODUCER, blob_sha256=digest)
        await to.publish(subject, reference.SerializeToString())
        reference.results.append(result(key, own, 0, 1_001))
        await to.publish(subject, reference.SerializeToString())
    await to.publish(subject, packed(*[pb.RunResult()] * 300_000))
    await to.publish(subject, packed(*[pb.RunResult(sequence=one) for one in range(900)]))
    text = "".join(chr(random.randrange(0x20000, 0x2A000)) for _ in range(3_000))
    await to.publish(subject, packed(result(key, own, 0, 1_002, suffix=text)))
    for _ in range(NUM_GARBAGE):
        await to.publish(subject, random.randbytes(50))


async def test_malformed_messages_are_put_away_and_the_run_goes_on(arena: Arena) -> None:
    plan = experiment_plan(arena.root, name="results")
    key = StageKey(tenant=plan.tenant, experiment_id=str(uuid.uuid4()), stage=STAGE)
    [own, *_] = await leased(arena.at, plan, key.experiment_id)
    known = dict(await known_values(arena.at, plan))
    known |= {"experiment_id": (key.experiment_id,), "assignment_id": (own.id,)}
    before = arena.vitals["buffer"]
    async with arena.unharmed("stream"):
        async with publisher(arena.explorer_nats_url) as to:
            await send_malformed(to, key, own, known)
            await to.publish(subject_of(key), packed(result(key, own, 1, 2_000)))
            assert await to.taken() == []
        last = await fate(arena.at, 2_000)
    assert last.state == buffer_pb2.CommitReport.STATE_COMMITTED, last.reason
    told = await fate(arena.at, 1_002)
    assert told.state == buffer_pb2.CommitReport.STATE_REJECTED and "suffix" in told.reason
    after = arena.vitals["buffer"]
    assert after.num_log_lines < before.num_log_lines + NUM_LINES
    assert after.mebibytes < before.mebibytes + GROWTH_MEBIBYTES
    with psycopg.connect(arena.buffer_dsn) as connection:
        query = "SELECT count(*), min(length(reason)), max(length(body)) FROM buffer.dead_letter"
        counts = connection.execute(query).fetchone()
    assert counts is not None
    assert counts[0] > NUM_GARBAGE + len(SUBJECTS) + len(HEADERS)
    assert counts[1] > 10 and counts[2] <= MAX_BODY_BYTES


async def test_of_many_dead_letters_the_newest_stay(arena: Arena) -> None:
    letters = [
        DeadLetter(subject=f"{i} " + "s" * 9_000, reason="because", body=b"b" * 2)
        for i in range(MAX_DEAD_LETTERS + 50)
    ]
    engine = async_engine(arena.buffer_dsn, "buffer")
    async with transaction(engine) as connection:
        await insert_dead_letters(connection, letters)
    await engine.dispose()
    with psycopg.connect(arena.buffer_dsn) as connection:
        query = "SELECT count(*), min(number), max(number) FROM buffer.dead_letter"
        row = connection.execute(query).fetchone()
    assert row is not None and row[0] <= MAX_DEAD_LETTERS and row[2] - row[1] < MAX_DEAD_LETTERS
