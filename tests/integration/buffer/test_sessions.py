"""Turns of runs: stored once under the current lease, and given to its holder."""

from pathlib import Path

import grpc
import psycopg
import pytest

from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1 import query_pb2
from trinity.api.v1.experience_pb2 import RunResultBatch, SessionTurn
from trinity.runtime.session_ids import session_id, turn_id

COMMITTED, REJECTED = pb.CommitReport.STATE_COMMITTED, pb.CommitReport.STATE_REJECTED
PROMPT = b"p" * 32
KEYS = "SELECT length(session_key), session_key FROM stage WHERE experiment_id = %s"
OLD = "UPDATE assignment SET numbers_calls = true WHERE experiment_id = %s"
PAYLOADS = """
    SELECT p.body FROM payload p JOIN turn t ON t.turn_id = p.payload_id
    WHERE t.experiment_id = %s
"""


def turn_of(
    buffer: Buffer,
    leased: pb.Assignment,
    *,
    run: int = 0,
    parent: SessionTurn | None = None,
    ordinal: int = 0,
    payload: bytes = b"payload",
) -> SessionTurn:
    buffer.sequence += 1
    parent_id = "" if parent is None else parent.id
    return SessionTurn(
        tenant=buffer.key.tenant,
        experiment_id=buffer.key.experiment_id,
        stage=buffer.key.stage,
        assignment_id=leased.id,
        run=run,
        lease_token=leased.lease_token,
        id=turn_id(session_id(leased.id, run), parent_id, PROMPT, ordinal),
        parent_id=parent_id,
        prompt_sha256=PROMPT,
        ordinal=ordinal,
        payload=payload,
        sequence=buffer.sequence,
    )


async def settle(buffer: Buffer, *turns: SessionTurn) -> list[pb.CommitReport]:
    """Publishes turns in one message; returns the reports on them."""
    message = RunResultBatch(producer=buffer.explorer_id, turns=turns)
    await buffer.broker.jetstream().publish(buffer.subject, message.SerializeToString())
    sequences = [turn.sequence for turn in turns]
    known = await buffer.fates(*sequences)
    return [known[sequence] for sequence in sequences]


async def stored(buffer: Buffer, leased: pb.Assignment, run: int = 0) -> list[SessionTurn]:
    lease = pb.Lease(assignment_id=leased.id, lease_token=leased.lease_token)
    request = pb.GetTurnsRequest(key=buffer.pb_key, lease=lease, run=run)
    stream = buffer.stub.GetTurns(request, timeout=CALL_SECONDS)
    return [turn async for response in stream for turn in response.turns]


async def begin(buffer: Buffer, root: Path) -> pb.LeaseAssignmentsResponse:
    await buffer.open(rollout_plan(root))
    await buffer.begin()
    await buffer.record(0)
    return await buffer.lease()


async def leased_again(buffer: Buffer) -> pb.LeaseAssignmentsResponse:
    """Gives all leases back and takes them again."""
    await buffer.stub.ReleaseLeases(
        pb.ReleaseLeasesRequest(key=buffer.pb_key, explorer_id=buffer.explorer_id),
        timeout=CALL_SECONDS,
    )
    return await buffer.lease()


async def test_whoever_holds_the_lease_gets_the_turns_and_the_key(
    buffer: Buffer, tmp_path: Path, shared_dsn: str
) -> None:
    granted = await begin(buffer, tmp_path)
    first, *_ = granted.assignments
    assert not first.has_turns and not first.numbers_calls
    root = turn_of(buffer, first)
    child = turn_of(buffer, first, parent=root, payload=b"x" * 3_000_000)
    more = [turn_of(buffer, first, parent=child, ordinal=i, payload=b"y") for i in range(70)]
    other = turn_of(buffer, first, run=1)
    assert [told.state for told in await settle(buffer, root, other)] == [COMMITTED] * 2
    digest = await buffer.upload(
        RunResultBatch(producer=buffer.explorer_id, turns=[child]).SerializeToString()
    )
    await buffer.publish_reference(digest)
    assert (await buffer.fates(child.sequence))[child.sequence].state == COMMITTED
    assert {told.state for told in await settle(buffer, *more)} == {COMMITTED}
    again = await leased_again(buffer)
    own = {leased.id: leased for leased in again.assignments}[first.id]
    assert own.has_turns and sum(leased.has_turns for leased in again.assignments) == 1
    found = await stored(buffer, own)
    assert [turn.id for turn in found] == [turn.id for turn in (root, child, *more)]
    assert found[1].payload == child.payload and found[1].parent_id == root.id
    assert [turn.id for turn in await stored(buffer, own, run=1)] == [other.id]
    assert again.session_key == granted.session_key
    with psycopg.connect(shared_dsn) as connection:
        rows = connection.execute(KEYS, [buffer.key.experiment_id]).fetchall()
    assert rows == [(32, granted.session_key)]


async def test_a_turn_counts_once_and_only_under_the_newest_lease(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *_ = (await begin(buffer, tmp_path)).assignments
    root = turn_of(buffer, first)
    [told] = await settle(buffer, root)
    assert told.state == COMMITTED
    again = {own.id: own for own in (await leased_again(buffer)).assignments}[first.id]
    resent = turn_of(buffer, first)
    late = turn_of(buffer, first, parent=root)
    changed = turn_of(buffer, again, payload=b"other")
    orphan = turn_of(buffer, again, parent=late)
    reports = await settle(buffer, resent, late, changed, orphan)
    assert [told.state for told in reports] == [COMMITTED, REJECTED, REJECTED, REJECTED]
    assert "the lease under which it was made is over" in reports[1].reason
    assert "another answer was stored" in reports[2].reason
    assert "is not stored" in reports[3].reason
    assert [turn.payload for turn in await stored(buffer, again)] == [b"payload"]
    with pytest.raises(grpc.aio.AioRpcError, match="is not leased under this token"):
        await stored(buffer, first)


async def test_a_turn_that_contradicts_itself_is_refused_and_put_away(
    buffer: Buffer, tmp_path: Path
) -> None:
    first, *_ = (await begin(buffer, tmp_path)).assignments
    good, bad = turn_of(buffer, first), turn_of(buffer, first, ordinal=1)
    bad.ordinal = 2
    told = await settle(buffer, good, bad)
    assert [report.state for report in told] == [COMMITTED, REJECTED]
    assert "should have the id" in told[1].reason


async def test_runs_that_were_drawn_by_the_release_before_keep_their_seeds(
    buffer: Buffer, tmp_path: Path, shared_dsn: str
) -> None:
    await begin(buffer, tmp_path)
    with psycopg.connect(shared_dsn) as connection:
        connection.execute(OLD, [buffer.key.experiment_id])
    again = await leased_again(buffer)
    assert all(leased.numbers_calls for leased in again.assignments)


async def test_deleting_a_sample_deletes_what_its_run_was_told(
    buffer: Buffer, looking: Looking, tmp_path: Path, shared_dsn: str
) -> None:
    first, *_ = (await begin(buffer, tmp_path)).assignments
    root = turn_of(buffer, first)
    child = turn_of(buffer, first, parent=root, ordinal=1)
    await settle(buffer, root, child, turn_of(buffer, first, run=1, payload=b"kept"))
    assert [turn.payload for turn in await looking.session(first.id)] == [b"payload"] * 2
    await buffer.settle(buffer.complete(first, 0))
    [sample] = await looking.list()
    wanted = query_pb2.ExperienceFilter(experience_ids=[sample.id])
    await looking.delete(wanted, "asked to")
    with psycopg.connect(shared_dsn) as connection:
        left = connection.execute(PAYLOADS, [buffer.key.experiment_id]).fetchall()
    assert left == [(b"kept",)]
    gone = await looking.session(first.id)
    assert [(turn.parent_id, turn.ordinal, turn.payload) for turn in gone] == [
        ("", 0, b""),
        (root.id, 1, b""),
    ]
    assert [turn.payload for turn in await looking.session(first.id, run=1)] == [b"kept"]
    assert await looking.session(first.id, run=2) == []
