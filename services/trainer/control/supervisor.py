"""Trains one stage at a time: starts gangs, watches their progress, and reports failures."""

import asyncio
import logging
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Coroutine

import grpc

from services.trainer.control.attempt import StageAttempt, StageOutcome, StageResult
from services.trainer.control.gang import GangManager
from services.trainer.control.jobs import (
    ReadinessCondition,
    StageStartKey,
    StageWatcher,
    TrainerReadiness,
    TrainingJob,
)
from services.trainer.control.places import group_place
from services.trainer.control.status import TrainerState
from services.trainer.settings import TrainerSettings
from trinity.errors import UserError
from trinity.runtime.rpc.host_group import HostGroup

logger = logging.getLogger(__name__)

RETRY_WAIT = "retry"
HOSTS_WAIT = "hosts"
HOST_POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
STAND_BY_SECONDS = 5.0


class TrainingSupervisor:
    """Runs until told to stop; trains one stage at a time, the oldest first.

    A stage is skipped once its end was reported to the synchronizer, and while another trainer
    trains it; a resumed experiment counts as another start, with new stages.
    """

    def __init__(
        self,
        *,
        settings: TrainerSettings,
        watcher: StageWatcher,
        state: TrainerState,
        gang_manager: GangManager,
        readiness: TrainerReadiness,
        stop: asyncio.Event,
        hosts: HostGroup | None = None,
    ) -> None:
        self._hosts = hosts or HostGroup(group_place(settings, settings.tenant))
        self._settings = settings
        self._watcher = watcher
        self._state = state
        self._gang_manager = gang_manager
        self._readiness = readiness
        self._stop = stop
        self._reported: set[StageStartKey] = set()
        """Stages whose end was reported to the synchronizer; its news may not show that yet."""
        self._trained_elsewhere: set[StageStartKey] = set()
        self._open_attempt: StageAttempt | None = None

    async def supervise(self) -> None:
        """Works, then stops the ranks gracefully."""
        try:
            while not self._stop.is_set():
                await self._work_or_wait()
        finally:
            await self._gang_manager.stop()

    async def _work_or_wait(self) -> None:
        seen = self._watcher.update_count
        listed = self._watcher.stages_to_train()
        self._reported &= set(listed)  # one that is listed again later is to be looked at again
        wanted = [key for key in listed if key not in self._reported]
        ours = [key for key in wanted if key not in self._trained_elsewhere]
        if ours:
            if await self._is_unclaimed(ours[0]):
                await self._start_stage(ours[0])
            return
        self._readiness.mark_met(ReadinessCondition.GANG)
        preloads = self._settings.preload_ranks and self._hosts.num_hosts == 1
        if not self._gang_manager.has_gang and preloads:
            await self._gang_manager.gang_with(self._settings.preload_ranks)
        if wanted:
            await self._stand_by(wanted, seen)
        else:
            self._state.set_idle()
            await self._wait_or_stop(self._watcher.wait_for_update(seen))

    async def _is_unclaimed(self, key: StageStartKey) -> bool:
        """Returns True if no other trainer works on it; if that is unknown, incarnations decide."""
        try:
            if not await self._is_trained_by_another(key):
                return True
        except grpc.aio.AioRpcError as error:
            logger.info("cannot check for other trainers", extra={"reason": error.details()})
            return True
        logger.info("another trainer works on a stage", extra={"stage": key.stage})
        self._trained_elsewhere.add(key)
        return False

    async def _is_trained_by_another(self, key: StageStartKey) -> bool:
        return await self._watcher.is_trained_by_another(
            key, trainer_id=self._state.trainer_id, address=self._state.address
        )

    async def _start_stage(self, key: StageStartKey) -> None:
        job = await self._load_job(key)
        if job is None:
            return
        end = await self._train(job)
        outcome = end.outcome
        logger.info(
            "work on a stage ended",
            extra={"stage": key.stage, "outcome": outcome.value, "why": end.reason},
        )
        if outcome in (StageOutcome.FINISHED, StageOutcome.STOPPED):
            self._reported.add(key)
        elif outcome is StageOutcome.SUPERSEDED:
            self._trained_elsewhere.add(key)
        elif outcome is not StageOutcome.NO_LONGER_NEEDED and self._watcher.is_to_be_trained(key):
            await self._fail(key, _failure_reason(key, end))

    async def _load_job(self, key: StageStartKey) -> TrainingJob | None:
        """Returns None, after a wait or a reported failure, if the plan cannot be read."""
        try:
            job = await self._watcher.load_job(
                key,
                trainer_id=self._state.trainer_id,
                buffer=self._settings.buffer,
                synchronizer=self._settings.synchronizer,
                transfer_host=self._settings.transfer_host,
            )
        except grpc.aio.AioRpcError as error:
            logger.warning("cannot fetch the plan", extra={"reason": error.details()})
            await self._wait_to_retry(f"to read the plan of stage {key.stage}: {error.details()}")
            return None
        except UserError as error:
            await self._fail(key, f"the trainer cannot begin stage `{key.stage}`: {error}")
            return None
        self._state.clear_wait(RETRY_WAIT)
        return job

    async def _train(self, job: TrainingJob) -> StageResult:
        """Makes one attempt after the other, until the stage ends or restarts stop helping."""
        self._state.begin_stage(job.key.experiment_id, job.key.stage)
        starts_without_progress = 0
        while True:
            self._readiness.set_met(ReadinessCondition.GANG, is_met=self._gang_manager.has_gang)
            end, made_progress = await self._attempt(job)
            await self._release_ranks(end)
            if end.outcome is StageOutcome.AGAIN:
                continue
            if end.outcome is not StageOutcome.DIED:
                return end
            logger.error("the ranks died", extra={"reason": end.reason})
            starts_without_progress = 1 if made_progress else starts_without_progress + 1
            if starts_without_progress > self._settings.max_restarts:
                return StageResult(StageOutcome.RETRIES_EXHAUSTED, end.reason)

    async def _attempt(self, job: TrainingJob) -> tuple[StageResult, bool]:
        """Makes one attempt; returns its end, and whether a step was trained for the first time."""
        # A host may leave while ranks stop: the new ones start on the hosts that are there then.
        await self._gang_manager.stop_unfit(job.num_ranks)
        if (end := await self._await_hosts(job)) is not None:
            return end, False
        try:
            gang = await self._gang_manager.gang_with(job.num_ranks)
        except UserError as error:  # ranks and hosts do not fit
            return StageResult(StageOutcome.RETRIES_EXHAUSTED, str(error)), False
        attempt = StageAttempt(
            gang=gang,
            job=job,
            watcher=self._watcher,
            state=self._state,
            stop=self._stop,
            stop_seconds=self._settings.stop_seconds,
        )
        self._readiness.mark_met(ReadinessCondition.GANG)
        self._state.num_gang_starts += 1
        self._open_attempt = attempt
        saved_step = None
        try:
            end = await attempt.run_once()
            saved_step = self._state.step if end.outcome is StageOutcome.STOPPED else None
        finally:
            self._open_attempt = None
            attempt.saved_step.set_result(saved_step)
        return end, attempt.made_progress

    async def save_and_stop(self, tenant: str, experiment_id: str) -> int | None:
        """Has the step in hand saved, and the stage left until the experiment is started again.

        Returns the step; None, at once, where no step of the experiment is trained, and where the
        attempt ended otherwise.
        """
        attempt = self._open_attempt
        if attempt is None or not (attempt.is_training and attempt.is_of(tenant, experiment_id)):
            return None
        attempt.order_save()
        return await asyncio.shield(attempt.saved_step)

    async def _await_hosts(self, job: TrainingJob) -> StageResult | None:
        """Waits until all hosts have joined; returns the end of the attempt if they do not."""
        limit, started = self._settings.host_wait_seconds, time.monotonic()
        while missing := self._hosts.missing:
            is_known = self._watcher.is_connected
            if self._stop.is_set() or (is_known and not self._watcher.is_to_be_trained(job.key)):
                return StageResult(StageOutcome.NO_LONGER_NEEDED)
            waited = time.monotonic() - started
            numbers = ", ".join(str(number) for number in missing)
            if waited > limit:
                reason = (
                    f"of {self._hosts.num_hosts} hosts, these have not come back for {waited:.0f} "
                    f"s: {numbers} (TRINITY_TRAINER_HOST_WAIT_SECONDS)"
                )
                return StageResult(StageOutcome.DIED, reason)
            self._state.set_wait(
                HOSTS_WAIT,
                waits_for="hosts of the worker group",
                reason=f"host {numbers} of {self._hosts.num_hosts} is not there",
                deadline_seconds=limit,
                waited_seconds=waited,
            )
            await self._wait_or_stop(self._hosts.changed(), min(HOST_POLL_SECONDS, limit))
        self._state.clear_wait(HOSTS_WAIT)
        return None

    async def _release_ranks(self, end: StageResult) -> None:
        """Kills ranks after anything but a regular end, as they may hang in each other's calls."""
        if end.outcome is StageOutcome.NO_LONGER_NEEDED:
            await self._gang_manager.stop()
        elif end.outcome not in (StageOutcome.FINISHED, StageOutcome.STOPPED):
            await self._gang_manager.kill()
        self._state.end_waits()

    async def _stand_by(self, keys: list[StageStartKey], seen: int) -> None:
        """Waits until there is news, or another trainer that works on a stage is gone."""
        self._state.set_standby(keys[0].stage)
        await self._wait_or_stop(self._watcher.wait_for_update(seen), STAND_BY_SECONDS)
        for key in keys:
            try:
                is_trained = await self._is_trained_by_another(key)
            except grpc.aio.AioRpcError as error:
                logger.info("cannot check for other trainers", extra={"reason": error.details()})
                return
            if not is_trained:
                logger.warning("no other trainer works on a stage", extra={"stage": key.stage})
                self._trained_elsewhere.discard(key)

    async def _fail(self, key: StageStartKey, reason: str) -> None:
        """Reports the failure until it is accepted: no other process ends the experiment."""
        logger.error("the stage fails", extra={"reason": reason})
        while not self._stop.is_set() and self._watcher.is_to_be_trained(key):
            try:
                await self._watcher.fail(key, reason)
            except grpc.aio.AioRpcError as error:
                logger.warning("cannot report the failure", extra={"reason": error.details()})
                await self._wait_to_retry(f"to report that the stage failed: {error.details()}")
            else:
                self._reported.add(key)
                self._state.clear_wait(RETRY_WAIT)
                return

    async def _wait_to_retry(self, reason: str) -> None:
        """Shows a wait without a deadline: no other process could do it, so retries never end."""
        self._state.set_wait(RETRY_WAIT, waits_for="synchronizer", reason=reason)
        await self._wait_or_stop(asyncio.sleep(RETRY_SECONDS))

    async def _wait_or_stop(
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


def _failure_reason(key: StageStartKey, end: StageResult) -> str:
    """Returns the reason that the experiment ends, as the user reads it."""
    if end.outcome is StageOutcome.CANCELLED:
        return f"the buffer ended stage `{key.stage}`: {end.reason or 'it did not say why'}"
    return f"the trainer failed in stage `{key.stage}`: {end.reason}"
