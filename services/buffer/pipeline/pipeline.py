"""The worker of the pipeline: claims groups, processes them, commits the results."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from services.buffer import telemetry
from services.buffer.domain.group import GroupOutcome
from services.buffer.domain.operators import FunctionChain
from services.buffer.domain.stage import Stage
from services.buffer.domain.tasks import sanitize_text
from services.buffer.operations.grouping import (
    commit_group_results,
    release_untried_claims,
    split_runs_text,
)
from services.buffer.pipeline.shaping import AdvantageComputer
from services.buffer.store.database import SCOPES_TOPIC, BufferDatabase
from services.buffer.store.pipeline import (
    Claim,
    GroupResult,
    claim_groups,
    claim_step,
    renew_claims,
    seconds_until_claims_end,
    stages_with_work,
)
from services.buffer.store.reports import log_notice
from services.buffer.store.stages import get_stage
from services.buffer.workers.functions import FunctionRunner, ServiceUnavailable
from trinity.errors import Unavailable
from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.loops import LoopKind, of_stage
from trinity.runtime.notifications import Listener, Subscription
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import wait_kind_of
from trinity.types import StageKey

logger = logging.getLogger(__name__)
limited_log = RateLimitedLog(logger)


CLAIM_SECONDS = 3.0
"""A claim expires after this, unless its worker renews it."""
MAX_CLAIMS = 512
"""Most groups that are processed together; more would hold the stage's lock for long."""
MAX_READ_CLAIMS = 16
"""The same if an operator reads contents of samples, because all of them are in memory."""
SERVICE_WAIT = "operator's service"
PAUSE_SECONDS = 2.0
WAIT = "pipeline"
LOOK_SECONDS = 3.0
"""Interval at which an idle worker looks for work that others left."""
MARGIN_SECONDS = 0.01
LINGER_SECONDS = 0.05
"""Pause when no more work is waiting, so that a trainer that waits for the rows goes first."""
RETRY_SECONDS = 0.5
MAX_AT_ONCE = 4
"""Stages that are worked on concurrently, each with one or two connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimProcessor:
    """Processes claimed groups; a failure counts as an attempt at its group and stops no other."""

    database: BufferDatabase
    computer: AdvantageComputer
    advised: set[StageKey] = field(default_factory=set)
    """Stages with a logged notice on runs with several samples; one notice per process."""

    async def process_claims(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> int:
        """Processes the groups that fit into a turn, releases the others; returns how many.

        Raises: Unavailable, ServiceUnavailable.
        """
        async with self._renewing(claims):
            return await self._process_or_bisect(stage, chain, claims)

    @asynccontextmanager
    async def _renewing(self, claims: Sequence[Claim]) -> AsyncIterator[None]:
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

    async def _process_or_bisect(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> int:
        """Processes groups together; on an error, bisects to isolate the failing group.

        An explore step that is processed as a whole is not split.
        """
        try:
            return await self._process_and_commit(stage, chain, claims)
        except (Unavailable, ServiceUnavailable):
            raise
        except Exception as error:  # edge of the loop: one group must not stop all others
            logger.exception("groups cannot be committed", extra={"groups": len(claims)})
            if len(claims) > 1 and not chain.needs.whole_step:
                middle = len(claims) // 2
                first = await self._process_or_bisect(stage, chain, claims[:middle])
                return first + await self._process_or_bisect(stage, chain, claims[middle:])
            async with self.database.transaction() as connection:
                await commit_group_results(connection, [_failed(claim, error) for claim in claims])
            return len(claims)

    async def _process_and_commit(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> int:
        begun_ns = time.time_ns()
        results = await self.computer.compute_groups(stage, chain, claims)
        tried = {group.claim.assignment_id for group in results}
        async with self.database.transaction() as connection:
            untried = [claim for claim in claims if claim.assignment_id not in tried]
            await release_untried_claims(connection, untried)
            await commit_group_results(connection, results)
            if text := "" if stage.key in self.advised else split_runs_text(stage, results):
                await log_notice(connection, stage.key, text)
        if text:
            self.advised.add(stage.key)
        telemetry.record_groups(results, begun_ns)
        for group in results:
            if group.outcome.error:
                extra = {"assignment": group.claim.assignment_id, "why": group.outcome.error}
                logger.warning("a group cannot be shaped", extra=extra)
        return len(tried)


def _failed(claim: Claim, error: Exception) -> GroupResult:
    """Returns a failed group with the first line of the error: SQL errors contain the statement."""
    text = str(error).strip().split("\n")[0]
    outcome = GroupOutcome(error=sanitize_text(f"{type(error).__name__}: {text}"))
    return GroupResult(claim=claim, outcome=outcome)


class AdaptiveClaimSize:
    """Shrinks the size for a stage that could not try all groups, and doubles it otherwise.

    sizes.limit(key, chain)  # 512
    sizes.update(key, num_claimed=512, num_tried=3)
    sizes.limit(key, chain)  # 3
    """

    def __init__(self) -> None:
        self._sizes: dict[StageKey, int] = {}

    def limit(self, key: StageKey, chain: FunctionChain) -> int:
        """Returns how many groups to claim next."""
        most = MAX_READ_CLAIMS if chain.needs.content else MAX_CLAIMS
        return min(most, self._sizes.get(key, most))

    def update(self, key: StageKey, *, num_claimed: int, num_tried: int) -> None:
        """Adapts to the result of a claim; ignores a small claim that was tried as a whole."""
        if num_tried < num_claimed:
            self._sizes[key] = max(num_tried, 1)
        elif num_claimed >= self._sizes.get(key, MAX_CLAIMS):
            self._sizes[key] = min(2 * num_claimed, MAX_CLAIMS)

    def retain_stages(self, keys: Collection[StageKey]) -> None:
        """Forgets all other stages."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in keys}


class ServiceBackoff:
    """Tracks until when each such stage pauses; a pause costs its groups no attempt."""

    def __init__(self, waits: WaitRegistry) -> None:
        self._waits = waits
        self._until: dict[StageKey, float] = {}

    def is_paused(self, key: StageKey) -> bool:
        """Returns whether it is too early to retry."""
        return time.monotonic() < self._until.get(key, 0.0)

    def pause(self, key: StageKey, why: str) -> None:
        """Starts a pause, because the service did not answer."""
        logger.warning("a stage's operator waits", extra={"stage": key.stage, "why": why})
        self._until[key] = time.monotonic() + PAUSE_SECONDS
        reason = f"to shape groups of stage {key.stage}: {why}"
        self._waits.set(SERVICE_WAIT, waits_for="experience operator", reason=reason)

    def resume(self, key: StageKey) -> None:
        """Ends the pause, because the service has answered."""
        self.retain_stages([other for other in self._until if other != key])

    def retain_stages(self, keys: Collection[StageKey]) -> None:
        """Ends the pauses of all other stages, which have no work any more."""
        over = [key for key in self._until if key not in keys]
        for key in over:
            self._until.pop(key)
        if over and not self._until:
            self._waits.clear(SERVICE_WAIT)


class ExperiencePipeline:
    """A worker; any number of them, in any replica, share the work.

    Stages with work are processed concurrently, one claim at a time each. If there are more than
    `MAX_AT_ONCE`, a stage whose turn is over queues up behind all waiting ones, so that slow
    functions of one stage do not starve the others. No failure of a group ends the worker.
    """

    def __init__(
        self,
        *,
        database: BufferDatabase,
        listener: Listener,
        functions: FunctionRunner,
        waits: WaitRegistry,
    ) -> None:
        self._database = database
        self._listener = listener
        self._computer = AdvantageComputer(database=database, functions=functions, waits=waits)
        self._processor = ClaimProcessor(database=database, computer=self._computer)
        self._waits = waits
        self._sizes = AdaptiveClaimSize()
        self._backoff = ServiceBackoff(waits)
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)  # first come, first served
        self._turns: dict[StageKey, asyncio.Task[None]] = {}
        self._wanted: set[StageKey] = set()  # more work was seen during their turn
        self._unfinished: list[Sequence[Claim]] = []

    async def run_pipeline(self) -> None:
        """Works until cancelled; claims of a dead worker expire soon."""
        self._turns.clear()  # of a life before, which was cancelled within them
        with self._listener.subscribe(SCOPES_TOPIC) as changes:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    try:
                        await self._begin_turns(tasks, changes)
                        await self._wait_briefly()
                        pause_seconds = await self._seconds_to_look()
                    except Unavailable as error:
                        logger.warning("the pipeline waits", extra={"why": str(error)})
                        why = f"to shape groups: {error}"
                        kind = wait_kind_of(error)
                        self._waits.set(WAIT, waits_for="database", reason=why, kind=kind)
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    self._waits.clear(WAIT)
                    await changes.wait(pause_seconds)

    async def _begin_turns(self, tasks: asyncio.TaskGroup, changes: Subscription) -> None:
        """Starts a turn for each stage that has work and no turn yet."""
        await self._release_unfinished()
        async with self._database.autocommit() as connection:
            keys = await stages_with_work(connection)
        self._backoff.retain_stages(keys)
        self._sizes.retain_stages({*keys, *self._turns})
        for key in keys:
            if key in self._turns:
                self._wanted.add(key)
            elif not self._backoff.is_paused(key):
                turn = self._take_turn(key, changes)
                self._turns[key] = tasks.create_task(turn, name="pipeline turn")

    async def _wait_briefly(self) -> None:
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
            async with self._slots:
                pause_seconds = await self._process_claim(key)
        except Exception as error:  # one stage must not stop all others
            is_unexpected = not isinstance(error, Unavailable)
            about = {"stage": key.stage, "why": str(error)}
            logger.warning("groups of a stage wait", extra=about, exc_info=is_unexpected)
            if is_unexpected:
                why = of_stage("pipeline", key.experiment_id, key.stage, error)
                self._waits.set(
                    f"{WAIT} {key}",
                    waits_for=LoopKind.DATA_PATH,
                    reason=why,
                    experiment_id=key.experiment_id,
                )
            changes.notify()
            await asyncio.sleep(RETRY_SECONDS)
            pause_seconds = 0.0
        else:
            self._waits.clear(f"{WAIT} {key}")
        del self._turns[key]
        if pause_seconds == 0 or key in self._wanted:
            self._wanted.discard(key)
            changes.notify()
        elif pause_seconds is not None:
            asyncio.get_running_loop().call_later(pause_seconds, changes.notify)

    async def _process_claim(self, key: StageKey) -> float | None:
        """Returns the delay until the next look; None if no claim could be processed."""
        async with self._database.autocommit() as connection:
            stage = await get_stage(connection, key)
        if not stage.is_open:
            return None
        chain = await self._computer.load_functions(stage)
        most = self._sizes.limit(key, chain)
        claims = await self._claim(stage, chain, most)
        if not claims:
            return None
        num_tried = await self._process(stage, chain, claims)
        if num_tried is None:
            return None
        self._sizes.update(key, num_claimed=len(claims), num_tried=num_tried)
        is_all = num_tried == len(claims) < most and not chain.needs.whole_step
        return LINGER_SECONDS if is_all else 0.0

    async def _claim(self, stage: Stage, chain: FunctionChain, most: int) -> list[Claim]:
        if chain.needs.whole_step:  # of any size; there may be another step
            async with self._database.transaction() as connection:
                return await claim_step(connection, stage.key, claim_seconds=CLAIM_SECONDS)
        async with self._database.autocommit() as connection:
            return await claim_groups(
                connection, stage.key, limit=most, claim_seconds=CLAIM_SECONDS
            )

    async def _process(
        self, stage: Stage, chain: FunctionChain, claims: Sequence[Claim]
    ) -> int | None:
        """Returns how many groups were tried; None if an operator's service does not answer."""
        try:
            num_tried = await self._processor.process_claims(stage, chain, claims)
        except Unavailable:
            self._unfinished.append(claims)
            raise
        except ServiceUnavailable as error:
            self._unfinished.append(claims)
            await self._release_unfinished()
            self._backoff.pause(stage.key, str(error))
            return None
        self._backoff.resume(stage.key)
        return num_tried

    async def _seconds_to_look(self) -> float:
        """Returns the delay until the next look: claims of dead workers are found on expiry."""
        async with self._database.autocommit() as connection:
            seconds = await seconds_until_claims_end(connection)
        return LOOK_SECONDS if seconds is None else min(seconds + MARGIN_SECONDS, LOOK_SECONDS)

    async def _release_unfinished(self) -> None:
        """Releases claims that could not be released during an outage of the database."""
        while self._unfinished:
            claims = self._unfinished.pop()
            try:
                async with self._database.transaction() as connection:
                    await release_untried_claims(connection, claims)
            except Unavailable:
                self._unfinished.append(claims)
                raise
