"""Processes claims: holds them, processes their groups, commits the results."""

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
from services.buffer.handlers.grouping import commit_shaped, hand_back
from services.buffer.shaped_types import Shaped
from services.buffer.shaping import Shaper
from services.buffer.store.claims import Claim, renew_claims
from services.buffer.store.database import Database
from trinity.errors import Unavailable
from trinity.limited_log import LimitedLog
from trinity.telemetry import tracing

logger = logging.getLogger(__name__)
limited_log = LimitedLog(logger)

CLAIM_SECONDS = 3.0
"""A claim expires after this, unless its worker renews it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupWork:
    """Processes claimed groups; a failure counts as an attempt at its group and stops no other."""

    database: Database
    shaper: Shaper

    async def do(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int:
        """Processes the groups that fit into a turn, releases the others; returns how many.

        Raises: Unavailable, ServiceAway.
        """
        async with self._renewed(claims):
            return await self._work_on(stage, chain, claims)

    @asynccontextmanager
    async def _renewed(self, claims: Sequence[Claim]) -> AsyncIterator[None]:
        """Renews claims while the block runs."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(CLAIM_SECONDS / 3)
                try:
                    async with self.database.autocommit() as connection:
                        await renew_claims(connection, claims, CLAIM_SECONDS)
                except Unavailable as error:  # claims still held are renewed later
                    why = str(error)
                    limited_log.warning("claims on groups are not renewed for now", why=why)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _work_on(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int:
        """Processes groups together; on an error, bisects to isolate the failing group.

        An explore step that is processed as a whole is not split.
        """
        try:
            return await self._shape_and_commit(stage, chain, claims)
        except (Unavailable, ServiceAway):
            raise
        except Exception as error:  # edge of the loop: one group must not stop all others
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
        tried = {group.claim.assignment_id for group in shaped}
        async with self.database.transaction() as connection:
            untried = [claim for claim in claims if claim.assignment_id not in tried]
            await hand_back(connection, untried)
            await commit_shaped(connection, shaped)
        telemetry.shaped(shaped, begun_ns)
        for group in shaped:
            if group.outcome.error:
                extra = {"assignment": group.claim.assignment_id, "why": group.outcome.error}
                logger.warning("a group cannot be shaped", extra=extra)
        return len(tried)


def _failed(claim: Claim, error: Exception) -> Shaped:
    """Returns a failed group with the first line of the error: SQL errors contain the statement."""
    text = str(error).strip().split("\n")[0]
    outcome = Outcome(error=storable(f"{type(error).__name__}: {text}"))
    return Shaped(claim=claim, outcome=outcome)
