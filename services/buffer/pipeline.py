"""The experience pipeline: processes complete groups of all stages in turns."""

import asyncio
import logging
from collections.abc import Sequence

from services.buffer.away import AwayServices
from services.buffer.claim_sizes import ClaimSizes
from services.buffer.domain.operator import Chain
from services.buffer.domain.stage import Stage
from services.buffer.functions import Functions, ServiceAway
from services.buffer.group_work import CLAIM_SECONDS, GroupWork
from services.buffer.handlers.grouping import hand_back
from services.buffer.shaping import Shaper
from services.buffer.store.claims import Claim, claim_groups, claim_step
from services.buffer.store.database import SCOPES_TOPIC, Database
from services.buffer.store.scopes import seconds_until_claims_end, stages_with_work
from services.buffer.store.stages import get_stage
from trinity.errors import Unavailable
from trinity.notifications import Listener, Subscription
from trinity.types import StageKey
from trinity.waits import Waits

logger = logging.getLogger(__name__)

WAIT = "pipeline"
LOOK_SECONDS = 3.0
"""Interval at which an idle worker looks for work that others left."""
MARGIN_SECONDS = 0.01
LINGER_SECONDS = 0.05
"""Pause when no more work is waiting, so that a trainer that waits for the rows goes first."""
RETRY_SECONDS = 0.5
MAX_AT_ONCE = 4
"""Stages that are worked on concurrently, each with one or two connections."""


class Pipeline:
    """A worker; any number of them, in any replica, share the work.

    Stages with work are processed concurrently, one claim at a time each. If there are more than
    `MAX_AT_ONCE`, a stage whose turn is over queues up behind all waiting ones, so that slow
    functions of one stage do not starve the others. No failure of a group ends the worker.
    """

    def __init__(
        self, *, database: Database, listener: Listener, functions: Functions, waits: Waits
    ) -> None:
        self._database = database
        self._listener = listener
        self._shaper = Shaper(database=database, functions=functions, waits=waits)
        self._work = GroupWork(database=database, shaper=self._shaper)
        self._waits = waits
        self._sizes = ClaimSizes()
        self._away = AwayServices(waits)
        self._places = asyncio.Semaphore(MAX_AT_ONCE)  # first come, first served
        self._turns: dict[StageKey, asyncio.Task[None]] = {}
        self._wanted: set[StageKey] = set()  # more work was seen during their turn
        self._unfinished: list[Sequence[Claim]] = []

    async def run(self) -> None:
        """Works until cancelled; claims of a dead worker expire soon."""
        with self._listener.subscribe(SCOPES_TOPIC) as changes:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        await self._begin_turns(tasks, changes)
                        await self._let_work()
                        pause_seconds = await self._seconds_to_look()
                    except Unavailable as error:
                        logger.warning("the pipeline waits", extra={"why": str(error)})
                        why = f"to shape groups: {error}"
                        self._waits.set(WAIT, waits_for="database", reason=why)
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    self._waits.clear(WAIT)
                    await changes.wait(pause_seconds)

    async def _begin_turns(self, tasks: asyncio.TaskGroup, changes: Subscription) -> None:
        """Starts a turn for each stage with work that has none yet."""
        await self._give_up_claims()
        async with self._database.autocommit() as connection:
            keys = await stages_with_work(connection)
        self._away.keep(keys)
        self._sizes.keep({*keys, *self._turns})
        for key in keys:
            if key in self._turns:
                self._wanted.add(key)
            elif not self._away.is_away(key):
                turn = self._take_turn(key, changes)
                self._turns[key] = tasks.create_task(turn, name="pipeline turn")

    async def _let_work(self) -> None:
        """Waits briefly: most notifications now are of stages already at work."""
        if self._turns:
            await asyncio.wait(
                list(self._turns.values()),
                timeout=LINGER_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )

    async def _take_turn(self, key: StageKey, changes: Subscription) -> None:
        """Processes some groups of a stage once a place is free, and schedules the next look."""
        try:
            async with self._places:
                pause_seconds = await self._shape_some(key)
        except Exception as error:  # one stage must not stop all others
            is_unexpected = not isinstance(error, Unavailable)
            about = {"stage": key.stage, "why": str(error)}
            logger.warning("groups of a stage wait", extra=about, exc_info=is_unexpected)
            changes.notice()
            await asyncio.sleep(RETRY_SECONDS)
            pause_seconds = 0.0
        del self._turns[key]
        if pause_seconds == 0 or key in self._wanted:
            self._wanted.discard(key)
            changes.notice()
        elif pause_seconds is not None:
            asyncio.get_running_loop().call_later(pause_seconds, changes.notice)

    async def _shape_some(self, key: StageKey) -> float | None:
        """Returns the delay until the next look, None if nothing could be done."""
        async with self._database.autocommit() as connection:
            stage = await get_stage(connection, key)
        if not stage.is_open:
            return None
        chain = await self._shaper.chain_of(stage)
        most = self._sizes.most(key, chain)
        claims = await self._claim(stage, chain, most)
        if not claims:
            return None
        num_tried = await self._worked_on(stage, chain, claims)
        if num_tried is None:
            return None
        self._sizes.learn(key, num_claimed=len(claims), num_tried=num_tried)
        is_all = num_tried == len(claims) < most and not chain.needs.whole_step
        return LINGER_SECONDS if is_all else 0.0

    async def _claim(self, stage: Stage, chain: Chain, most: int) -> list[Claim]:
        if chain.needs.whole_step:  # of any size; there may be another step
            async with self._database.transaction() as connection:
                return await claim_step(connection, stage.key, claim_seconds=CLAIM_SECONDS)
        async with self._database.autocommit() as connection:
            return await claim_groups(
                connection, stage.key, limit=most, claim_seconds=CLAIM_SECONDS
            )

    async def _worked_on(self, stage: Stage, chain: Chain, claims: Sequence[Claim]) -> int | None:
        """Returns how many groups were tried; None if an operator's service does not answer."""
        try:
            num_tried = await self._work.do(stage, chain, claims)
        except Unavailable:
            self._unfinished.append(claims)
            raise
        except ServiceAway as error:
            self._unfinished.append(claims)
            await self._give_up_claims()
            self._away.note(stage.key, str(error))
            return None
        self._away.forget(stage.key)
        return num_tried

    async def _seconds_to_look(self) -> float:
        """Returns the delay until the next look: claims of dead workers are found on expiry."""
        async with self._database.autocommit() as connection:
            seconds = await seconds_until_claims_end(connection)
        return LOOK_SECONDS if seconds is None else min(seconds + MARGIN_SECONDS, LOOK_SECONDS)

    async def _give_up_claims(self) -> None:
        """Releases claims that could not be released during an outage of the database."""
        while self._unfinished:
            claims = self._unfinished.pop()
            try:
                async with self._database.transaction() as connection:
                    await hand_back(connection, claims)
            except Unavailable:
                self._unfinished.append(claims)
                raise
