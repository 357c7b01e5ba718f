"""Trains one stage at a time: starts gangs, watches their progress, and reports failures."""

import asyncio
import logging
import math
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from enum import Enum

import grpc

from services.trainer.control.gang import Gang, GangManager, RankDied, RankEvent
from services.trainer.control.hosts import Hosts
from services.trainer.control.jobs import (
    ReadinessCondition,
    StageStartKey,
    StageWatcher,
    TrainerReadiness,
    TrainingJob,
)
from services.trainer.control.status import TrainerState
from services.trainer.messages import RankActivity, RankStageEnded, RankStageFailed, RankWaiting
from services.trainer.settings import TrainerSettings
from trinity.errors import UserError

logger = logging.getLogger(__name__)

START_SECONDS = 600.0
"""Least time limit for importing and joining, on slow disks too."""
SILENCE_WAIT = "silence"
SHOWN_SILENCE_SECONDS = 2.0
TOLD_SILENCE_SECONDS = 30.0
"""Shorter silences are micro-batches: after their end they would push all other waits out."""
MIN_LISTEN_SECONDS = 0.1
"""Least time to listen: what ranks sent while the service was held up counts, however late."""
RETRY_WAIT = "retry"
HOSTS_WAIT = "hosts"
HOST_POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
STAND_BY_SECONDS = 5.0


class Watchdog:
    """Measures how long a gang may still be silent.

    Any rank's event counts: ranks that wait for one another cannot go on for long without each. A
    rank that reported a wait with a deadline may be silent until then.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = seconds
        self._first_seconds = max(seconds, START_SECONDS)
        self._started = clock()
        self._last_event_at: float | None = None
        self._waits: dict[tuple[int, str], float] = {}
        """The times at which open waits give up, by rank and name."""

    @property
    def timeout_reason(self) -> str:
        """The reason to give for a gang whose time is over."""
        return (
            f"no rank gave a sign of life for {self.silent_seconds:.0f} s, and none had said that "
            "it waits (`synchronizer.sync_timeout`)"
        )

    @property
    def has_open_wait(self) -> bool:
        """True if a rank has reported what it waits for."""
        return bool(self._waits)

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last sign of life, or since the start."""
        return self._clock() - (
            self._started if self._last_event_at is None else self._last_event_at
        )

    @property
    def limit_seconds(self) -> float:
        """Limit of silence without a reported wait."""
        return self._first_seconds if self._last_event_at is None else self._seconds

    def record_event(self, received: RankEvent) -> None:
        """Records an event of a rank."""
        self._last_event_at = self._clock()
        if not isinstance(received.event, RankWaiting):
            return
        place = received.rank, received.event.name
        if not received.event.waits_for:
            self._waits.pop(place, None)
        else:
            self._waits.setdefault(
                place, self._last_event_at + (received.event.deadline_seconds or math.inf)
            )

    def remaining_seconds(self) -> float:
        """Returns the seconds until the gang counts as stuck."""
        if self._last_event_at is None:
            return self._started + self._first_seconds - self._clock()
        excused = max([self._last_event_at, *self._waits.values()])
        return excused + self._seconds - self._clock()


class StageOutcome(Enum):
    """The ways in which an attempt ends."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    """The buffer ended the stage."""
    SUPERSEDED = "superseded"
    """A newer incarnation trains the stage."""
    DIED = "died"
    """Another attempt may succeed."""
    RETRIES_EXHAUSTED = "hopeless"
    """Another attempt would end the same way."""
    NO_LONGER_NEEDED = "unwanted"
    """The stage is no longer to be trained, or the service stops."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The outcome of an attempt, and its reason; only FINISHED leaves ranks of further use."""

    outcome: StageOutcome
    reason: str = ""


class StageAttempt:
    """One attempt of a gang to train the stage; the first rank that does not finish ends it."""

    def __init__(
        self,
        *,
        gang: Gang,
        job: TrainingJob,
        watcher: StageWatcher,
        state: TrainerState,
        stop: asyncio.Event,
        stop_seconds: float,
    ) -> None:
        self._gang = gang
        self._job = job
        self._watcher = watcher
        self._state = state
        self._stop = stop
        self._stop_seconds = stop_seconds
        self._unneeded_since: float | None = None
        self.made_progress = False
        """True if a step was trained for the first time."""

    async def run_once(self) -> StageResult:
        """Has the stage trained."""
        watchdog = Watchdog(self._job.silence_seconds)
        self._gang.send_stage(self._job.order)
        num_finished = 0
        while num_finished < self._gang.num_ranks:
            received = await self._next_event_or_end(watchdog)
            match received:
                case StageResult():
                    return received
                case RankDied(reason=reason):
                    return StageResult(StageOutcome.DIED, reason)
                case RankEvent(event=RankStageFailed(reason=reason, can_retry=can_retry)):
                    return StageResult(
                        StageOutcome.DIED if can_retry else StageOutcome.RETRIES_EXHAUSTED, reason
                    )
                case RankEvent(event=RankStageEnded(outcome="finished")):
                    num_finished += 1
                case RankEvent(event=RankStageEnded(outcome=outcome, reason=reason)):
                    return StageResult(StageOutcome(outcome), reason)
                case RankEvent():
                    self._record_event(received)
        return StageResult(StageOutcome.FINISHED)

    async def _next_event_or_end(self, watchdog: Watchdog) -> RankEvent | RankDied | StageResult:
        """Returns a rank's next event, or the end of the attempt."""
        shown = asyncio.get_running_loop().call_later(
            SHOWN_SILENCE_SECONDS, self._show_silence_wait, watchdog
        )
        try:
            return await self._await_event_or_end(watchdog)
        finally:
            shown.cancel()
            self._state.clear_wait(SILENCE_WAIT, told_from=TOLD_SILENCE_SECONDS)

    def _show_silence_wait(self, watchdog: Watchdog) -> None:
        """Shows a wait for ranks that have not said what they wait for themselves."""
        if watchdog.has_open_wait:
            return
        self._state.set_wait(
            SILENCE_WAIT,
            waits_for="ranks",
            reason=f"a sign of life; the last one: {self._state.activity}",
            deadline_seconds=watchdog.limit_seconds,
            waited_seconds=watchdog.silent_seconds,
        )

    async def _await_event_or_end(self, watchdog: Watchdog) -> RankEvent | RankDied | StageResult:
        while not self._stop.is_set():
            seen = self._watcher.update_count
            silence, listen_seconds = watchdog.remaining_seconds(), self._listen_seconds_left()
            if listen_seconds <= 0:
                break
            received = await self._await_event(
                seen, max(min(silence, listen_seconds), MIN_LISTEN_SECONDS)
            )
            if isinstance(received, RankEvent):
                watchdog.record_event(received)
            if received is not None:
                return received
            if silence <= 0:
                return StageResult(StageOutcome.DIED, watchdog.timeout_reason)
        return StageResult(StageOutcome.NO_LONGER_NEEDED)

    def _listen_seconds_left(self) -> float:
        """Returns how long to go on listening; infinite while the stage is to be trained.

        A stage also leaves the list when its ranks have finished it: they soon report that.
        """
        if not self._watcher.is_connected or self._watcher.is_to_be_trained(self._job.key):
            self._unneeded_since = None
            return math.inf
        if self._watcher.has_later_start(self._job.key):
            return 0.0
        now = time.monotonic()
        if self._unneeded_since is None:
            self._unneeded_since = now
        return self._unneeded_since + self._stop_seconds - now

    async def _await_event(self, seen: int, seconds: float) -> RankEvent | RankDied | None:
        """Returns the gang's next event; None when news, the stop or the time limit come first."""
        receiving = asyncio.create_task(self._gang.next_event())
        others: list[asyncio.Task[object]] = [
            asyncio.create_task(self._stop.wait()),
            asyncio.create_task(self._watcher.wait_for_update(seen)),
        ]
        limit = None if math.isinf(seconds) else seconds
        await asyncio.wait([receiving, *others], timeout=limit, return_when=FIRST_COMPLETED)
        for other in others:
            other.cancel()
        if receiving.done():
            return receiving.result()
        receiving.cancel()
        return None

    def _record_event(self, received: RankEvent) -> None:
        """Records waits of all ranks, but activities of the first rank alone."""
        if isinstance(received.event, RankWaiting):
            self._state.record_rank_wait(received.rank, received.event)
        elif isinstance(received.event, RankActivity) and received.rank == 0:
            self.made_progress |= self._state.record_activity(received.event)


class TrainingSupervisor:
    """Runs until told to stop; trains one stage at a time, the oldest first.

    A stage is left alone once its end was reported to the synchronizer, and while another trainer
    is seen to train it; a resumed experiment is another start, with stages of its own.
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
        hosts: Hosts | None = None,
    ) -> None:
        self._hosts = hosts or Hosts(num_hosts=1)
        self._settings = settings
        self._watcher = watcher
        self._state = state
        self._gang_manager = gang_manager
        self._readiness = readiness
        self._stop = stop
        self._reported: set[StageStartKey] = set()
        """Stages whose end was reported to the synchronizer; its news may not show that yet."""
        self._trained_elsewhere: set[StageStartKey] = set()

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
        if outcome is StageOutcome.FINISHED:
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
            if end.outcome is not StageOutcome.DIED:
                return end
            logger.error("the gang died", extra={"reason": end.reason})
            starts_without_progress = 1 if made_progress else starts_without_progress + 1
            if starts_without_progress > self._settings.max_restarts:
                return StageResult(StageOutcome.RETRIES_EXHAUSTED, end.reason)

    async def _attempt(self, job: TrainingJob) -> tuple[StageResult, bool]:
        """Makes one attempt; returns its end, and whether a step was trained for the first time."""
        # Stopping takes a while, in which a host may go: a gang is started of those there after it.
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
        return await attempt.run_once(), attempt.made_progress

    async def _await_hosts(self, job: TrainingJob) -> StageResult | None:
        """Waits until all hosts of the gang are there; returns the end if they do not come."""
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
                waits_for="hosts of the gang",
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
        elif end.outcome is not StageOutcome.FINISHED:
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
