"""The pipeline's worker: claims groups that are complete, shapes them, commits what came of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.buffer import telemetry
from services.buffer.away import AwayServices
from services.buffer.domain.group import Outcome
from services.buffer.domain.operator import Chain
from services.buffer.domain.samples import storable
from services.buffer.domain.stage import Stage
from services.buffer.functions import Functions, ServiceAway
from services.buffer.handlers.grouping import Shaped, commit_shaped, hand_back
from services.buffer.shaping import Shaper
from services.buffer.store.claims import Claim, claim_groups, claim_step, renew_claims
from services.buffer.store.database import SCOPES_TOPIC, Database
from services.buffer.store.scopes import seconds_until_claims_end, stages_with_work
from services.buffer.store.stages import get_stage
from trinity.errors import Unavailable
from trinity.notifications import Listener
from trinity.telemetry import tracing
from trinity.waits import Waits

logger = logging.getLogger(__name__)

WAIT = "pipeline"
CLAIM_SECONDS = 3.0
"""What a worker claimed is free after that, unless it says that it works on it."""
LOOK_SECONDS = 3.0
"""How often an idle worker looks for what others left."""
MARGIN_SECONDS = 0.01
LINGER_SECONDS = 0.05
"""Where nothing more is waiting: the trainer, who may wait for what was shaped, goes first."""
RETRY_SECONDS = 0.5
MAX_CLAIMS = 512
"""Groups that are shaped together; more would hold the stage's lock for long."""
MAX_READ_CLAIMS = 16
"""The same where an operator reads what samples say, all of which is in memory then."""


class Pipeline:
    """One worker; any number of them, in any replica, share the work.

    Whatever goes wrong with a group counts as an attempt at it; after the last one it is left out
    and a person is told. Nothing that a group does ends the worker.
    """

    def __init__(
        self, *, database: Database, listener: Listener, functions: Functions, waits: Waits
    ) -> None:
        self._database = database
        self._listener = listener
        self._shaper = Shaper(database=database, functions=functions, waits=waits)
        self._waits = waits
        self._unfinished: list[Claim] = []
        self._away = AwayServices(waits)

    async def run(self) -> None:
        """Work until cancelled; a claim of a worker that died is soon free."""
        with self._listener.subscribe(SCOPES_TOPIC) as changes:
            while True:
                try:
                    found = await self._work_once()
                    pause_seconds = await self._seconds_to_look() if found is None else found
                except Unavailable as error:
                    logger.warning("the pipeline waits", extra={"why": str(error)})
                    self._waits.set(WAIT, waits_for="database", reason=f"to shape groups: {error}")
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._waits.clear(WAIT)
                await changes.wait(pause_seconds)

    async def _work_once(self) -> float | None:
        """Shape some groups of one stage; answers when to look for more, None if there was none."""
        await self._give_up_claims()
        async with self._database.autocommit() as connection:
            keys = await stages_with_work(connection)
            stages = [await get_stage(connection, key) for key in keys]
        self._away.keep(keys)
        for stage in stages:
            if self._away.is_away(stage.key):
                continue
            chain = await self._shaper.chain_of(stage)
            if claims := await self._claim(stage, chain):
                self._unfinished = list(claims)
                if await self._worked_on(stage, chain, claims):
                    may_be_more = len(stages) > 1 or len(claims) >= _most_claims(chain)
                    return 0.0 if may_be_more else LINGER_SECONDS
        return None

    async def _worked_on(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> bool:
        """Whether it was done; what an operator asks may not answer, and others can go on."""
        try:
            async with self._renewed(claims):
                await self._work_on(stage, chain, claims)
        except ServiceAway as error:
            self._away.note(stage.key, str(error))
            await self._give_up_claims()
            return False
        self._away.forget(stage.key)
        self._unfinished = []
        return True

    async def _seconds_to_look(self) -> float:
        """A worker that died says nothing: its claims are looked for when they end."""
        async with self._database.autocommit() as connection:
            seconds = await seconds_until_claims_end(connection)
        return LOOK_SECONDS if seconds is None else min(seconds + MARGIN_SECONDS, LOOK_SECONDS)

    async def _claim(self, stage: Stage, chain: Chain) -> list[Claim]:
        async with self._database.transaction() as connection:
            if chain.needs.whole_step:
                return await claim_step(connection, stage.key, claim_seconds=CLAIM_SECONDS)
            return await claim_groups(
                connection, stage.key, limit=_most_claims(chain), claim_seconds=CLAIM_SECONDS
            )

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
        async with self._database.transaction() as connection:
            await hand_back(connection, self._unfinished)
        self._unfinished = []

    async def _work_on(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> None:
        """Groups together; if something in them cannot be, each half on its own.

        An explore step that is shaped as a whole stays whole.
        """
        try:
            await self._shape_and_commit(stage, chain, claims)
        except (Unavailable, ServiceAway):
            raise
        except Exception as error:  # the loop's edge: one group must not stop all others
            logger.exception("groups cannot be committed", extra={"groups": len(claims)})
            if len(claims) > 1 and not chain.needs.whole_step:
                middle = len(claims) // 2
                await self._work_on(stage, chain, claims[:middle])
                await self._work_on(stage, chain, claims[middle:])
                return
            async with self._database.transaction() as connection:
                await commit_shaped(connection, [_failed(claim, error) for claim in claims])

    async def _shape_and_commit(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> None:
        begun_ns = tracing.now_ns()
        shaped = await self._shaper.shape(stage, chain, claims)
        tried = {one.claim.assignment_id for one in shaped}
        async with self._database.transaction() as connection:
            await commit_shaped(connection, shaped)
            await hand_back(
                connection, [claim for claim in claims if claim.assignment_id not in tried]
            )
        telemetry.shaped(shaped, begun_ns)
        for one in shaped:
            if one.outcome.error:
                extra = {"assignment": one.claim.assignment_id, "why": one.outcome.error}
                logger.warning("a group cannot be shaped", extra=extra)


def _most_claims(chain: Chain) -> int:
    if chain.needs.whole_step:
        return 1  # whatever the step has: there may be another one
    return MAX_READ_CLAIMS if chain.needs.content else MAX_CLAIMS


def _failed(claim: Claim, error: Exception) -> Shaped:
    """The first line says what is wrong; a database's error goes on with the whole statement."""
    text = str(error).strip().split("\n")[0]
    outcome = Outcome(error=storable(f"{type(error).__name__}: {text}"))
    return Shaped(claim=claim, outcome=outcome)
