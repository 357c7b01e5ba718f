"""Works on claims: holds them, shapes their groups, commits what came of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from services.buffer import telemetry
from services.buffer.domain.group import Outcome
from services.buffer.domain.operator import Chain
from services.buffer.domain.samples import storable
from services.buffer.domain.stage import Stage
from services.buffer.functions import ServiceAway
from services.buffer.handlers.grouping import Shaped, commit_shaped, hand_back
from services.buffer.shaping import Shaper
from services.buffer.store.claims import Claim, renew_claims
from services.buffer.store.database import Database
from trinity.errors import Unavailable
from trinity.limited_log import LimitedLog
from trinity.telemetry import tracing

logger = logging.getLogger(__name__)
limited_log = LimitedLog(logger)

CLAIM_SECONDS = 3.0
"""What a worker claimed is free after that, unless it says that it works on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """Whatever goes wrong with a group counts as an attempt at it, and ends nobody's work."""

    database: Database
    shaper: Shaper

    async def do(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int:
        """Shape the groups that there is time for and hand the others back; answers how many.

        Raises: Unavailable, ServiceAway.
        """
        async with self._renewed(claims):
            return await self._work_on(stage, chain, claims)

    @asynccontextmanager
    async def _renewed(self, claims: Sequence[Claim]) -> AsyncIterator[None]:
        """Hold claims for as long as they are worked on."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(CLAIM_SECONDS / 3)
                try:
                    async with self.database.autocommit() as connection:
                        await renew_claims(connection, claims, CLAIM_SECONDS)
                except Unavailable as error:  # what nobody took meanwhile is held again after it
                    why = str(error)
                    limited_log.warning("claims on groups are not renewed for now", why=why)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _work_on(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int:
        """Groups together; if something in them cannot be, each half on its own.

        An explore step that is shaped as a whole stays whole.
        """
        try:
            return await self._shape_and_commit(stage, chain, claims)
        except (Unavailable, ServiceAway):
            raise
        except Exception as error:  # the loop's edge: one group must not stop all others
            logger.exception("groups cannot be committed", extra={"groups": len(claims)})
            if len(claims) > 1 and not chain.needs.whole_step:
                middle = len(claims) // 2
                first = await self._work_on(stage, chain, claims[:middle])
                return first + await self._work_on(stage, chain, claims[middle:])
            async with self.database.transaction() as connection:
                await commit_shaped(connection, [_failed(claim, error) for claim in claims])
            return len(claims)

    async def _shape_and_commit(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int:
        begun_ns = tracing.now_ns()
        shaped = await self.shaper.shape(stage, chain, claims)
        tried = {one.claim.assignment_id for one in shaped}
        async with self.database.transaction() as connection:
            untried = [claim for claim in claims if claim.assignment_id not in tried]
            await hand_back(connection, untried)
            await commit_shaped(connection, shaped)
        telemetry.shaped(shaped, begun_ns)
        for one in shaped:
            if one.outcome.error:
                extra = {"assignment": one.claim.assignment_id, "why": one.outcome.error}
                logger.warning("a group cannot be shaped", extra=extra)
        return len(tried)


def _failed(claim: Claim, error: Exception) -> Shaped:
    """The first line says what is wrong; a database's error goes on with the whole statement."""
    text = str(error).strip().split("\n")[0]
    outcome = Outcome(error=storable(f"{type(error).__name__}: {text}"))
    return Shaped(claim=claim, outcome=outcome)
