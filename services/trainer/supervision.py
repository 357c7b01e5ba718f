"""Keeps a gang at work on the stage that is wanted, through the deaths of its ranks."""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine
from enum import Enum

import grpc

from services.trainer.gang import Gang, RankDied, RankEvent
from services.trainer.jobs import Job, JobBoard, JobKey
from services.trainer.messages import Activity, Ready, StageEnded, StageFailed, Waiting
from services.trainer.settings import TrainerSettings
from services.trainer.state import TrainerState

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Attempt(Enum):
    """How one life of the gang in a stage ended."""

    DONE = "done"
    DIED = "died"
    HOPELESS = "hopeless"
    UNWANTED = "unwanted"


class Supervisor:
    """Runs until told to stop; one stage at a time, the oldest wanted first.

    A gang outlives its stages: importing torch and verl takes longer than building a small model.
    """

    def __init__(
        self,
        *,
        settings: TrainerSettings,
        board: JobBoard,
        state: TrainerState,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._board = board
        self._state = state
        self._stop = stop
        self._gang: Gang | None = None
        self._handled: set[JobKey] = set()
        self._reason = ""
        self._made_progress = False

    async def run(self) -> None:
        """Work, then stop the ranks in order."""
        try:
            while not self._stop.is_set():
                await self._work_or_wait()
        finally:
            if self._gang is not None:
                await self._gang.stop(self._settings.stop_seconds)

    async def _work_or_wait(self) -> None:
        seen = self._board.num_news
        wanted = [key for key in self._board.wanted() if key not in self._handled]
        if not wanted:
            self._state.idle()
            if self._gang is None and self._settings.preload_ranks:
                await self._gang_of(self._settings.preload_ranks)
            await self._until(self._board.wait_for_news(seen))
            return
        try:
            job = await self._board.job(
                wanted[0],
                trainer_id=self._state.trainer_id,
                buffer=self._settings.buffer,
                synchronizer=self._settings.synchronizer,
            )
        except grpc.aio.AioRpcError as error:
            logger.warning("the plan cannot be had", extra={"reason": error.details()})
            await self._until(asyncio.sleep(RETRY_SECONDS))
            return
        await self._train(job)

    async def _train(self, job: Job) -> None:
        """Start after start, until the stage ends or starts stop helping."""
        self._state.begin(job.key.experiment_id, job.key.stage)
        starts_without_progress = 0
        while not self._stop.is_set():
            self._made_progress = False
            attempt = await self._attempt(job)
            if attempt is not Attempt.DIED:
                break
            starts_without_progress = 1 if self._made_progress else starts_without_progress + 1
            logger.error("the gang died", extra={"reason": self._reason})
            if starts_without_progress > self._settings.max_restarts:
                attempt = Attempt.HOPELESS
                break
        else:
            return
        if attempt is Attempt.HOPELESS:
            await self._fail(job.key)
        if attempt is not Attempt.UNWANTED:
            self._handled.add(job.key)

    async def _attempt(self, job: Job) -> Attempt:
        gang = await self._gang_of(job.num_ranks)
        self._state.num_gang_starts += 1
        gang.order(job.order)
        ended: set[int] = set()
        while len(ended) < gang.num_ranks:
            heard = await self._hear(gang, job.key)
            if heard is None:
                await self._end_gang()
                return Attempt.UNWANTED
            if isinstance(heard, RankDied):
                self._reason = self._reason or heard.reason
                await self._kill_gang()
                return Attempt.DIED
            if isinstance(heard.event, StageFailed):
                self._reason = heard.event.reason
                await self._kill_gang()
                return Attempt.DIED if heard.event.can_retry else Attempt.HOPELESS
            if isinstance(heard.event, StageEnded):
                ended.add(heard.rank)
                self._note_end(heard)
        return Attempt.DONE

    async def _hear(self, gang: Gang, key: JobKey) -> RankEvent | RankDied | None:
        """The next thing that is not just a report; None once the gang should end.

        A stage also stops being wanted when its ranks have finished it: they soon say so.
        """
        while not self._stop.is_set():
            seen = self._board.num_news
            wanted = not self._board.is_connected or key in self._board.wanted()
            limit = None if wanted else self._settings.stop_seconds
            heard = await self._next(gang, seen, limit)
            if heard is None and not wanted:
                return None
            if heard is not None and (isinstance(heard, RankDied) or not self._note(heard)):
                return heard
        return None

    async def _next(
        self, gang: Gang, seen: int, seconds: float | None
    ) -> RankEvent | RankDied | None:
        """What the gang says; None when news, the stop or the time limit come first."""
        hearing = asyncio.create_task(gang.hear())
        others: list[asyncio.Task[object]] = [asyncio.create_task(self._stop.wait())]
        if seconds is None:
            others.append(asyncio.create_task(self._board.wait_for_news(seen)))
        await asyncio.wait([hearing, *others], timeout=seconds, return_when=FIRST_COMPLETED)
        for other in others:
            other.cancel()
        if hearing.done():
            return hearing.result()
        hearing.cancel()
        return None

    def _note(self, heard: RankEvent) -> bool:
        """Whether it was only a report; the first rank's is kept."""
        event = heard.event
        if not isinstance(event, Ready | Activity | Waiting):
            return False
        if heard.rank == 0:
            self._note_report(event)
        return True

    def _note_report(self, event: Ready | Activity | Waiting) -> None:
        if isinstance(event, Waiting):
            self._state.note_wait(event)
        elif isinstance(event, Activity):
            self._made_progress |= self._state.note_activity(event)

    def _note_end(self, heard: RankEvent) -> None:
        if heard.rank == 0 and isinstance(heard.event, StageEnded):
            ended = heard.event
            logger.info(
                "the stage has ended",
                extra={"stage": self._state.stage, "outcome": ended.outcome, "why": ended.reason},
            )

    async def _fail(self, key: JobKey) -> None:
        reason = f"the trainer failed in stage `{key.stage}`: {self._reason}"
        logger.error("the stage fails", extra={"reason": reason})
        while not self._stop.is_set():
            try:
                await self._board.fail(key, reason)
                return
            except grpc.aio.AioRpcError as error:
                logger.warning("the failure cannot be told", extra={"reason": error.details()})
                await self._until(asyncio.sleep(RETRY_SECONDS))

    async def _gang_of(self, num_ranks: int) -> Gang:
        """The gang at hand if it fits, else a new one."""
        if self._gang is not None and self._gang.num_ranks != num_ranks:
            await self._end_gang()
        if self._gang is None:
            self._reason = ""
            self._gang = await Gang.start(
                num_ranks=num_ranks,
                log_level=self._settings.log_level,
                log_format=self._settings.log_format,
            )
            self._state.num_ranks = num_ranks
        return self._gang

    async def _end_gang(self) -> None:
        if self._gang is not None:
            await self._gang.stop(self._settings.stop_seconds)
        self._gang = None

    async def _kill_gang(self) -> None:
        if self._gang is not None:
            await self._gang.kill()
        self._gang = None

    async def _until(self, awaitable: Coroutine[object, object, object]) -> None:
        """Wait for it, or for the stop."""
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(awaitable),
            asyncio.create_task(self._stop.wait()),
        ]
        await asyncio.wait(tasks, return_when=FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
