"""The pipeline's worker: claims groups that are complete, shapes them, commits what came of it."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence

from services.buffer.handlers.grouping import Shaped, commit_shaped, shape
from services.buffer.store.database import SCOPES_TOPIC, Database
from services.buffer.store.experiences import load_raw_samples
from services.buffer.store.scopes import Claim, claim_scopes
from services.buffer.store.stages import get_stage
from trinity.errors import Unavailable
from trinity.notifications import Listener
from trinity.types import StageKey

logger = logging.getLogger(__name__)

CLAIM_SECONDS = 60.0
RETRY_SECONDS = 0.5
MAX_CLAIMS = 64


class Pipeline:
    """One worker; any number of them, in any replica, share the work."""

    def __init__(self, *, database: Database, listener: Listener) -> None:
        self._database = database
        self._listener = listener

    async def run(self) -> None:
        """Work until cancelled; a claim of a worker that died is free after a minute."""
        with self._listener.subscribe(SCOPES_TOPIC) as changes:
            while True:
                try:
                    busy = await self.work_once()
                except Unavailable as error:
                    logger.warning("the pipeline waits", extra={"why": str(error)})
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if not busy:
                    await changes.wait(CLAIM_SECONDS)

    async def work_once(self) -> bool:
        """Shape some groups; false when there was none."""
        async with self._database.transaction() as connection:
            claims = await claim_scopes(connection, limit=MAX_CLAIMS, claim_seconds=CLAIM_SECONDS)
        by_stage: dict[StageKey, list[Claim]] = defaultdict(list)
        for claim in claims:
            by_stage[claim.key].append(claim)
        for key, own in by_stage.items():
            shaped = await self._shape(key, own)
            async with self._database.transaction() as connection:
                await commit_shaped(connection, shaped)
        return bool(claims)

    async def _shape(self, key: StageKey, claims: Sequence[Claim]) -> list[Shaped]:
        ids = [claim.assignment_id for claim in claims]
        async with self._database.transaction() as connection:
            stage = await get_stage(connection, key)
            samples = await load_raw_samples(connection, key, ids)
        shaped = [shape(claim, stage.plan, samples[claim.assignment_id]) for claim in claims]
        for one in shaped:
            if one.error:
                logger.warning(
                    "a group cannot be shaped",
                    extra={"assignment": one.claim.assignment_id, "why": one.error},
                )
        return shaped
