"""Claims of a worker that died are looked for when they end, not some time later."""

from pathlib import Path

import sqlalchemy as sa

from services.buffer.store.scopes import seconds_until_claims_end
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.postgres import async_engine

CLAIM = "UPDATE pipeline_scope SET state = 'claimed', claimed_until = now() + :ends * interval '1s'"


async def test_an_idle_worker_knows_when_the_next_claim_ends(
    own_process: BufferProcess, own_buffer: Buffer, tmp_path: Path
) -> None:
    await own_buffer.open(rollout_plan(tmp_path, total_steps=1))
    await own_buffer.begin()
    await own_buffer.record(0)
    await own_buffer.finish_all((await own_buffer.lease()).assignments)
    await own_buffer.batch(1)
    own_process.kill()
    engine = async_engine(own_process.dsn, "buffer")
    async with engine.begin() as connection:
        assert await seconds_until_claims_end(connection) is None
        await connection.execute(sa.text(CLAIM), {"ends": 600})
        left = await seconds_until_claims_end(connection)
        assert left is not None and 0 < left <= 600
        await connection.execute(sa.text(CLAIM), {"ends": -1})
        assert await seconds_until_claims_end(connection) is None
    await engine.dispose()
