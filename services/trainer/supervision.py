"""Trains one stage after the other, restarts the gang, and reports stages that fail."""

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine

import grpc

from services.trainer.gang_keeper import GangKeeper
from services.trainer.jobs import Job, JobBoard, JobKey
from services.trainer.needs import Need, Needs
from services.trainer.settings import TrainerSettings
from services.trainer.stage_life import LifeEnd, Outcome, StageLife
from services.trainer.state import TrainerState
from trinity.errors import UserError

logger = logging.getLogger(__name__)

RETRY = "retry"
RETRY_SECONDS = 1.0
STAND_BY_SECONDS = 5.0


class Supervisor:
    """Runs until told to stop; trains one stage at a time, the oldest first.

    A stage is left alone once its end was reported to the synchronizer, and while another trainer
    is seen to train it; a resumed experiment is another start, with stages of its own.
    """

    def __init__(
        self,
        *,
        settings: TrainerSettings,
        board: JobBoard,
        state: TrainerState,
        keeper: GangKeeper,
        needs: Needs,
        stop: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._board = board
        self._state = state
        self._keeper = keeper
        self._needs = needs
        self._stop = stop
        self._told: set[JobKey] = set()
        """Stages whose end was reported to the synchronizer; its news may not show that yet."""
        self._left_to_others: set[JobKey] = set()

    async def run(self) -> None:
        """Works, then stops the ranks gracefully."""
        try:
            while not self._stop.is_set():
                await self._work_or_wait()
        finally:
            await self._keeper.stop()

    async def _work_or_wait(self) -> None:
        seen = self._board.num_news
        wanted = [key for key in self._board.wanted() if key not in self._told]
        ours = [key for key in wanted if key not in self._left_to_others]
        if ours:
            if await self._is_free(ours[0]):
                await self._take_up(ours[0])
            return
        self._needs.have(Need.GANG)
        if not self._keeper.has_gang and self._settings.preload_ranks:
            await self._keeper.gang_of(self._settings.preload_ranks)
        if wanted:
            await self._stand_by(wanted, seen)
        else:
            self._state.idle()
            await self._until(self._board.wait_for_news(seen))

    async def _is_free(self, key: JobKey) -> bool:
        """Returns True if no other trainer works on it; if that is unknown, incarnations decide."""
        try:
            if not await self._is_trained_by_another(key):
                return True
        except grpc.aio.AioRpcError as error:
            logger.info("cannot check for other trainers", extra={"reason": error.details()})
            return True
        logger.info("another trainer works on a stage", extra={"stage": key.stage})
        self._left_to_others.add(key)
        return False

    async def _is_trained_by_another(self, key: JobKey) -> bool:
        return await self._board.is_trained_by_another(
            key, trainer_id=self._state.trainer_id, address=self._state.address
        )

    async def _take_up(self, key: JobKey) -> None:
        try:
            job = await self._board.job(
                key,
                trainer_id=self._state.trainer_id,
                buffer=self._settings.buffer,
                synchronizer=self._settings.synchronizer,
                transfer_host=self._settings.transfer_host,
            )
        except grpc.aio.AioRpcError as error:
            logger.warning("cannot fetch the plan", extra={"reason": error.details()})
            self._show_retry(f"to read the plan of stage {key.stage}: {error.details()}")
            await self._until(asyncio.sleep(RETRY_SECONDS))
            return
        except UserError as error:
            await self._fail(key, f"the trainer cannot begin stage `{key.stage}`: {error}")
            return
        self._state.clear_wait(RETRY)
        end = await self._train(job)
        logger.info(
            "work on a stage ended",
            extra={"stage": key.stage, "outcome": end.outcome.value, "why": end.reason},
        )
        if end.outcome is Outcome.FINISHED:
            self._told.add(key)
        elif end.outcome is Outcome.SUPERSEDED:
            self._left_to_others.add(key)
        elif end.outcome is not Outcome.UNWANTED and self._board.wants(key):
            await self._fail(key, _sentence(key, end))

    async def _train(self, job: Job) -> LifeEnd:
        """Starts lives one after the other, until the stage ends or restarts stop helping."""
        self._state.begin(job.key.experiment_id, job.key.stage)
        starts_without_progress = 0
        while True:
            self._needs.note(Need.GANG, is_met=self._keeper.has_gang)
            life = StageLife(
                gang=await self._keeper.gang_of(job.num_ranks),
                job=job,
                board=self._board,
                state=self._state,
                stop=self._stop,
                stop_seconds=self._settings.stop_seconds,
            )
            self._needs.have(Need.GANG)
            self._state.num_gang_starts += 1
            end = await life.run()
            await self._clear_away(end)
            if end.outcome is not Outcome.DIED:
                return end
            logger.error("the gang died", extra={"reason": end.reason})
            starts_without_progress = 1 if life.made_progress else starts_without_progress + 1
            if starts_without_progress > self._settings.max_restarts:
                return LifeEnd(Outcome.HOPELESS, end.reason)

    async def _clear_away(self, end: LifeEnd) -> None:
        """Kills ranks after anything but a regular end, as they may hang in each other's calls."""
        if end.outcome is Outcome.UNWANTED:
            await self._keeper.stop()
        elif end.outcome is not Outcome.FINISHED:
            await self._keeper.kill()
        self._state.end_waits()

    async def _stand_by(self, keys: list[JobKey], seen: int) -> None:
        """Waits until there is news, or another trainer that works on a stage is gone."""
        self._state.stand_by(keys[0].stage)
        await self._until(self._board.wait_for_news(seen), STAND_BY_SECONDS)
        for key in keys:
            try:
                is_trained = await self._is_trained_by_another(key)
            except grpc.aio.AioRpcError as error:
                logger.info("cannot check for other trainers", extra={"reason": error.details()})
                return
            if not is_trained:
                logger.warning("no other trainer works on a stage", extra={"stage": key.stage})
                self._left_to_others.discard(key)

    async def _fail(self, key: JobKey, reason: str) -> None:
        """Reports the failure until it is accepted: no other process ends the experiment."""
        logger.error("the stage fails", extra={"reason": reason})
        while not self._stop.is_set() and self._board.wants(key):
            try:
                await self._board.fail(key, reason)
            except grpc.aio.AioRpcError as error:
                logger.warning("cannot report the failure", extra={"reason": error.details()})
                self._show_retry(f"to report that the stage failed: {error.details()}")
                await self._until(asyncio.sleep(RETRY_SECONDS))
            else:
                self._told.add(key)
                self._state.clear_wait(RETRY)
                return

    def _show_retry(self, reason: str) -> None:
        """Shows a wait without a deadline: no other process could do it, so retries never end."""
        self._state.set_wait(RETRY, waits_for="synchronizer", reason=reason)

    async def _until(
        self, awaitable: Coroutine[object, object, object], seconds: float | None = None
    ) -> None:
        """Waits for the awaitable, for the stop or for the time to pass."""
        tasks: list[asyncio.Task[object]] = [
            asyncio.create_task(awaitable),
            asyncio.create_task(self._stop.wait()),
        ]
        await asyncio.wait(tasks, timeout=seconds, return_when=FIRST_COMPLETED)
        for task in tasks:
            task.cancel()


def _sentence(key: JobKey, end: LifeEnd) -> str:
    """Returns the reason that the experiment ends, as the user reads it."""
    if end.outcome is Outcome.CANCELLED:
        return f"the buffer ended stage `{key.stage}`: {end.reason or 'it did not say why'}"
    return f"the trainer failed in stage `{key.stage}`: {end.reason}"
