"""The pipeline's worker: claims groups that are complete, shapes them, commits what came of it."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.buffer.advantages import AdvantageFailed, Advantages, AdvantageTimeout
from services.buffer.domain.group import Sample, outcomes_of, rewards_of
from services.buffer.domain.samples import storable
from services.buffer.handlers.grouping import Shaped, commit_shaped, hand_back
from services.buffer.store.database import SCOPES_TOPIC, Database
from services.buffer.store.experiences import load_raw_samples
from services.buffer.store.scopes import Claim, claim_scopes, renew_claims
from services.buffer.store.stages import get_stage
from trinity.config.plan import ResolvedAlgorithm
from trinity.errors import Unavailable
from trinity.notifications import Listener
from trinity.types import StageKey
from trinity.waits import Waits

logger = logging.getLogger(__name__)

WAIT = "pipeline"
SHOWN_AFTER_SECONDS = 1.0
CLAIM_SECONDS = 3.0
"""What a worker claimed is free after that, unless it says that it works on it."""
LOOK_SECONDS = 3.0
"""How often an idle worker looks for what others left."""
RETRY_SECONDS = 0.5
MAX_CLAIMS = 64


class Pipeline:
    """One worker; any number of them, in any replica, share the work.

    Whatever goes wrong with a group counts as an attempt at it; after the last one it is left out
    and a person is told. Nothing that a group does ends the worker.
    """

    def __init__(
        self, *, database: Database, listener: Listener, advantages: Advantages, waits: Waits
    ) -> None:
        self._database = database
        self._listener = listener
        self._advantages = advantages
        self._waits = waits
        self._unfinished: list[Claim] = []

    async def run(self) -> None:
        """Work until cancelled; a claim of a worker that died is soon free."""
        with self._listener.subscribe(SCOPES_TOPIC) as changes:
            while True:
                try:
                    busy = await self.work_once()
                except Unavailable as error:
                    logger.warning("the pipeline waits", extra={"why": str(error)})
                    self._waits.set(WAIT, waits_for="database", reason=f"to shape groups: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._waits.clear(WAIT)
                if not busy:
                    await changes.wait(LOOK_SECONDS)

    async def work_once(self) -> bool:
        """Shape some groups; false when there was none."""
        await self._give_up_claims()
        async with self._database.transaction() as connection:
            claims = await claim_scopes(connection, limit=MAX_CLAIMS, claim_seconds=CLAIM_SECONDS)
        self._unfinished = list(claims)
        by_stage: dict[StageKey, list[Claim]] = defaultdict(list)
        for claim in claims:
            by_stage[claim.key].append(claim)
        async with self._renewed(claims):
            for key, own in by_stage.items():
                await self._work_on(key, own)
        self._unfinished = []
        return bool(claims)

    @asynccontextmanager
    async def _renewed(self, claims: Sequence[Claim]) -> AsyncIterator[None]:
        """Hold claims for as long as they are worked on."""

        async def renew() -> None:
            while True:
                await asyncio.sleep(CLAIM_SECONDS / 3)
                async with self._database.transaction() as connection:
                    await renew_claims(connection, claims, CLAIM_SECONDS)

        renewing = asyncio.create_task(renew())
        try:
            yield
        finally:
            renewing.cancel()
            # A database that is away takes no commit either: whoever claims next does the work.
            await asyncio.gather(renewing, return_exceptions=True)

    async def _give_up_claims(self) -> None:
        """Hand back what the database did not take when it went away."""
        if not self._unfinished:
            return
        by_stage: dict[StageKey, list[Claim]] = defaultdict(list)
        for claim in self._unfinished:
            by_stage[claim.key].append(claim)
        async with self._database.transaction() as connection:
            for own in by_stage.values():
                await hand_back(connection, own)
        self._unfinished = []

    async def _work_on(self, key: StageKey, claims: Sequence[Claim]) -> None:
        """All groups of a stage together; if something in them cannot be, each on its own."""
        try:
            await self._shape_and_commit(key, claims)
        except Unavailable:
            raise
        except Exception as error:  # the loop's edge: one group must not stop all others
            logger.exception("groups cannot be committed", extra={"groups": len(claims)})
            if len(claims) > 1:
                for claim in claims:
                    await self._work_on(key, [claim])
                return
            async with self._database.transaction() as connection:
                await commit_shaped(connection, [_failed(claims[0], error)])

    async def _shape_and_commit(self, key: StageKey, claims: Sequence[Claim]) -> None:
        ids = [claim.assignment_id for claim in claims]
        async with self._database.transaction() as connection:
            stage = await get_stage(connection, key)
            samples = await load_raw_samples(connection, key, ids)
        shaped: list[Shaped] = []
        for claim in claims:
            own = samples[claim.assignment_id]
            try:
                shaped.append(await self._shape(claim, stage.plan.algorithm, own))
            except Exception as error:  # the function may be a user's
                shaped.append(_failed(claim, error))
                if isinstance(error, AdvantageTimeout):
                    break
        async with self._database.transaction() as connection:
            await commit_shaped(connection, shaped)
            await hand_back(connection, claims[len(shaped) :])
        for one in shaped:
            if one.error:
                extra = {"assignment": one.claim.assignment_id, "why": one.error}
                logger.warning("a group cannot be shaped", extra=extra)

    async def _shape(
        self, claim: Claim, algorithm: ResolvedAlgorithm, samples: Sequence[Sample]
    ) -> Shaped:
        """Raises: whatever the function raises, and what its values give reason for."""
        operator = algorithm.advantage_fn
        advantages = rewards_of(samples)
        if len(advantages):
            with self._waits.if_longer(
                SHOWN_AFTER_SECONDS,
                for_="advantage function",
                reason=f"{operator} to shape the group of assignment {claim.assignment_id}",
                deadline_seconds=self._advantages.limit_seconds,
            ):
                advantages = await self._advantages.compute(
                    operator, algorithm.advantage_fn_args, advantages
                )
        outcomes = outcomes_of(samples, advantages)
        return Shaped(claim=claim, operator=operator, outcomes=outcomes)


def _failed(claim: Claim, error: Exception) -> Shaped:
    """The first line says what is wrong; a database's error goes on with the whole statement."""
    text = str(error).strip().split("\n")[0]
    kind = "" if isinstance(error, AdvantageFailed) else f"{type(error).__name__}: "
    return Shaped(claim=claim, error=storable(kind + text))
