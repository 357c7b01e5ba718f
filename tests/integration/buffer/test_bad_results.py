"""What cannot be stored is put away with the reason, and its producer is told the same."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import pytest
from nats.aio.msg import Msg
from pydantic import SecretStr

from services.buffer.domain.results import Result
from services.buffer.domain.turns import ReceivedTurn
from services.buffer.ingest.ingest import Ingest, PlanVersionWaits
from services.buffer.ingest.stream import RunStream
from services.buffer.operations.results import ResultWriter, WrittenResults
from services.buffer.settings import BufferSettings
from services.buffer.store.database import BufferDatabase
from services.buffer.store.quotas import BufferQuotas
from services.buffer.store.reports import MAX_BODY_BYTES
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.experience_pb2 import RunResult, RunResultBatch
from trinity.runtime.postgres import async_engine
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.sql import Connection

Spoil = Callable[[RunResult], None]
LETTERS = "SELECT reason FROM dead_letter WHERE producer = %s ORDER BY number"
TERMINATED = "$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED"
BODIES = "SELECT body FROM dead_letter WHERE subject = %s ORDER BY number"


def _reward(value: float) -> Spoil:
    def spoil(result: RunResult) -> None:
        result.experiences[0].reward = value

    return spoil


def _short_logprobs(result: RunResult) -> None:
    result.experiences[0].sequence.rollout_logprobs.data = bytes(4)


def _short_mask(result: RunResult) -> None:
    mask = result.experiences[0].sequence.action_mask
    mask.data, mask.shape[:] = b"\x01", [1]


def _long_prompt(result: RunResult) -> None:
    result.experiences[0].sequence.prompt_length = 10_000


def _odd_logprob(result: RunResult) -> None:
    own = result.experiences[0].sequence.rollout_logprobs
    own.data = b"\x00\x00\xc0\x7f" * (len(own.data) // 4)


def _no_reward(result: RunResult) -> None:
    result.experiences[0].ClearField("reward")


def _foreign(result: RunResult) -> None:
    result.experiences[0].experiment_id = str(uuid.uuid4())


BAD: list[tuple[Spoil, str]] = [
    (_reward(float("nan")), "the reward nan is not a finite number"),
    (_reward(float("-inf")), "the reward -inf is not a finite number"),
    (_reward(1e300), "the reward 1e+300 is not a finite number, of 1e+30 at most"),
    (_no_reward, "an experience has no reward and awaits no feedback"),
    (_short_logprobs, "a tensor of shape [3] needs 12 bytes, has 4"),
    (_short_mask, "action_mask"),
    (_long_prompt, "prompt_length"),
    (_odd_logprob, "rollout_logprobs"),
    (_foreign, "an experience belongs to another assignment"),
]


@pytest.mark.parametrize(("spoil", "reason"), BAD)
async def test_a_bad_result_is_put_away_with_the_reason_that_its_producer_hears(
    buffer: Buffer, shared_dsn: str, tmp_path: Path, spoil: Spoil, reason: str
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    first = (await buffer.lease()).assignments[0]
    bad = buffer.complete(first, 0, Made(reward=1.0))
    spoil(bad)
    told, good = await buffer.settle(bad, buffer.complete(first, 1))
    assert told.state == pb.CommitReport.STATE_REJECTED
    assert reason in told.reason
    assert good.state == pb.CommitReport.STATE_COMMITTED
    with psycopg.connect(shared_dsn) as connection:
        kept = connection.execute(LETTERS, [buffer.explorer_id]).fetchall()
    assert kept == [(told.reason,)]


async def test_a_result_of_an_unknown_experiment_is_put_away(
    buffer: Buffer, shared_dsn: str
) -> None:
    nobodys = pb.Assignment(id=str(uuid.uuid4()))
    [told] = await buffer.settle(buffer.fail(nobodys, 0, 0))
    assert told.state == pb.CommitReport.STATE_REJECTED
    assert told.reason == f"stage rft of experiment {buffer.key.experiment_id} is not open"
    with psycopg.connect(shared_dsn) as connection:
        kept = connection.execute(LETTERS, [buffer.explorer_id]).fetchall()
    assert kept == [(told.reason,)]


class _Unsettling(ResultWriter):
    """Stores no result."""

    async def write_results(
        self,
        connection: Connection,
        results: Sequence[Result],
        turns: Sequence[ReceivedTurn] = (),
        *,
        is_alone: bool,
    ) -> WrittenResults:
        if results:
            raise ValueError("it breaks what stores it")
        return WrittenResults([], [])


async def _bodies_of_letters(
    buffer: Buffer, dsn: str, digest: bytes, settler: ResultWriter
) -> list[bytes]:
    """What is put away of a reference, which is delivered to an ingest of the test's own."""
    engine = async_engine(dsn, "buffer")
    database = BufferDatabase(engine)
    database.open()
    waits = WaitRegistry(owner="buffer", on_change=lambda: None)
    ingest = Ingest(
        database=database,
        stream=RunStream(buffer.broker, 1),
        result_writer=settler,
        quotas=BufferQuotas.from_settings(
            BufferSettings(postgres_dsn=SecretStr(""), nats_url=SecretStr(""))
        ),
        fetch_messages=1,
        bound=asyncio.Event(),
        waits=waits,
        plan_version_waits=PlanVersionWaits(waits),
    )
    reference = _reference(buffer, digest)
    message = Msg(buffer.broker, buffer.subject, buffer.broker.new_inbox(), reference)
    await ingest.store_messages([message])
    await engine.dispose()
    assert message.is_acked
    with psycopg.connect(dsn) as connection:
        return [body for (body,) in connection.execute(BODIES, [buffer.subject])]


def _reference(buffer: Buffer, digest: bytes) -> bytes:
    return RunResultBatch(producer=buffer.explorer_id, blob_sha256=digest).SerializeToString()


async def test_what_a_reference_refers_to_is_put_away_when_it_cannot_be_read(
    buffer: Buffer, shared_dsn: str
) -> None:
    garbage = b"\xff\xff not a message" * 10_000
    digest = await buffer.upload(garbage)
    kept = await _bodies_of_letters(buffer, shared_dsn, digest, ResultWriter(1, 1))
    assert kept == [garbage[:MAX_BODY_BYTES]]


async def test_what_a_reference_refers_to_is_put_away_when_it_cannot_be_stored(
    buffer: Buffer, shared_dsn: str
) -> None:
    content = buffer.batch_of([buffer.fail(pb.Assignment(id=str(uuid.uuid4())), 0, 0)])
    digest = await buffer.upload(content)
    kept = await _bodies_of_letters(buffer, shared_dsn, digest, _Unsettling(1, 1))
    assert kept == [content]


async def test_a_reference_to_nothing_is_put_away_itself(buffer: Buffer, shared_dsn: str) -> None:
    nowhere = uuid.uuid4().bytes * 2
    kept = await _bodies_of_letters(buffer, shared_dsn, nowhere, ResultWriter(1, 1))
    assert kept == [_reference(buffer, nowhere)]


def _many_names(result: RunResult) -> None:
    result.metrics.update({f"{number:0900}": 1.0 for number in range(300)})


async def test_too_large_a_result_from_the_broker_is_terminated_counted_and_named(
    buffer: Buffer, tmp_path: Path
) -> None:
    """It is delivered once; its run can be reported as failed, and the stage goes on."""
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    first = (await buffer.lease()).assignments[0]
    ended: asyncio.Queue[Msg] = asyncio.Queue()
    told_of = await buffer.broker.subscribe(f"{TERMINATED}.>", cb=ended.put)
    [good] = await buffer.settle(buffer.complete(first, 1))
    bad = buffer.complete(first, 0, Made(reward=1.0))
    _many_names(bad)
    [told] = await buffer.settle(bad)
    assert good.state == pb.CommitReport.STATE_COMMITTED
    assert told.state == pb.CommitReport.STATE_REJECTED
    assert told.reason.startswith("RunResult.metrics: has 272,400 bytes, and at most 262,144")
    async with asyncio.timeout(10):
        await ended.get()
    await told_of.unsubscribe()
    assert ended.empty(), "the good one is acknowledged"
    status = await buffer.stub.GetBufferStatus(
        pb.GetBufferStatusRequest(experiment_id=buffer.key.experiment_id), timeout=10
    )
    [stage] = status.stages
    assert (stage.num_dead_letters, stage.dead_letter_reason) == (1, told.reason)
    [failed] = await buffer.settle(buffer.fail(first, 0, 1))
    assert failed.state == pb.CommitReport.STATE_COMMITTED


async def test_a_large_result_is_held_by_the_same_table_when_it_comes_as_a_blob(
    buffer: Buffer, tmp_path: Path
) -> None:
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    first = (await buffer.lease()).assignments[0]
    bad = buffer.complete(first, 0, Made(reward=1.0))
    bad.experiences[0].info.update({"log": "x" * 5 * 2**20})
    await buffer.publish_reference(await buffer.upload(buffer.batch_of([bad])))
    told = (await buffer.fates(bad.sequence))[bad.sequence]
    assert told.state == pb.CommitReport.STATE_REJECTED
    assert told.reason.startswith("Experience.info: has 5,242,")
