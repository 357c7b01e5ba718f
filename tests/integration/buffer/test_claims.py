"""Claims of a worker that died are looked for when they end, not some time later."""

from pathlib import Path

import sqlalchemy as sa

from services.buffer.domain.stage import ScopeState
from services.buffer.store.pipeline import claim_groups, end_claims, seconds_until_claims_end
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.runtime.postgres import async_engine
from trinity.runtime.sql import transaction

CLAIM = "UPDATE pipeline_scope SET state = 'claimed', claimed_until = now() + :ends * interval '1s'"


async def end_with_claims_done(process: BufferProcess, buffer: Buffer, folder: Path) -> None:
    """Shape all groups of a stage, and have no worker that looks for more."""
    await buffer.open(rollout_plan(folder, total_steps=1))
    await buffer.begin()
    await buffer.record(0)
    await buffer.finish_all((await buffer.lease()).assignments)
    await buffer.batch(1)
    process.kill()


async def test_an_idle_worker_knows_when_the_next_claim_ends(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await end_with_claims_done(own_process, own_buffer, tmp_path)
    engine = async_engine(own_process.dsn, "buffer")
    async with transaction(engine) as connection:
        assert await seconds_until_claims_end(connection) is None
        await connection.execute(sa.text(CLAIM), {"ends": 600})
        left = await seconds_until_claims_end(connection)
        assert left is not None and 0 < left <= 600
        await connection.execute(sa.text(CLAIM), {"ends": -1})
        assert await seconds_until_claims_end(connection) is None
    await engine.dispose()


async def test_who_died_with_a_claim_has_not_tried(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    """Else a group whose buffer is killed twice is left out by the first failure."""
    await end_with_claims_done(own_process, own_buffer, tmp_path)
    engine = async_engine(own_process.dsn, "buffer")
    async with transaction(engine) as connection:
        await connection.execute(sa.text("UPDATE pipeline_scope SET state = 'open', attempts = 0"))
        for ends_in in (-2.0, -1.0):
            lapsed = await claim_groups(connection, own_buffer.key, limit=1, claim_seconds=ends_in)
            assert [claim.attempts for claim in lapsed] == [1]
        [held] = await claim_groups(connection, own_buffer.key, limit=1, claim_seconds=600)
        assert held.attempts == 1
        await end_claims(connection, [held], ScopeState.OPEN, "it failed")
        [again] = await claim_groups(connection, own_buffer.key, limit=1, claim_seconds=600)
        assert again.attempts == 2
    await engine.dispose()
