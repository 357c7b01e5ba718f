"""Runs workflows within time limits, which hold even if a workflow ignores cancellation."""

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from services.explorer.engine.interface import Engine
from services.explorer.engine.work_clock import WorkClock
from services.explorer.rollout.isolated_workflows import IsolatedSpec
from services.explorer.rollout.workflow_execution import (
    HostedSpec,
    LoopBlocked,
    Made,
    RunOnLoop,
    WorkflowSpec,
    watched_run,
)
from services.explorer.rollout.workflow_factory import WorkflowFactory
from services.explorer.types import Assignment, Attempt, AttemptResult, RolloutKind, WeightsId
from trinity.config.schema.explorer import ExplorerConfig
from trinity.data.codec import check_experience
from trinity.rewards.score import BadReward, as_reward
from trinity.runtime.logs import RateLimitedLog, redact_passwords
from trinity.runtime.telemetry import metrics, names, tracing
from trinity.runtime.threads import MAX_ABANDONED, DaemonThreads, abandon_task, is_being_cancelled
from trinity.types import EID, Experience
from trinity.user_code.values import UserCodeFailed, place_of
from trinity.workflows.experience_builder import AUXILIARY_MODEL
from trinity.workflows.model import ModelWrapper
from trinity.workflows.workflow import check_are_distinct

logger = logging.getLogger(__name__)


ValueT = TypeVar("ValueT")
GRACE_SECONDS = 2.0
"""Time for cleanup after a cancellation; a task that takes longer is abandoned."""
MIN_SECONDS = 1.0
"""Lower bound: the time of short runs depends more on the machine than on the run."""
LOST_WITH_RUN = {names.FATE: "run"}
MAX_REASON_CHARACTERS = 500
MAX_PLACES = 100
"""Most places of users' code whose failures are logged with a traceback."""


class DeadlineExceeded(Exception):
    """A coroutine exceeded its time limit."""


class DeadlineTasks:
    """Runs each coroutine in its own task, which is cancelled when its time is over.

    A cancelled task may not end. One that still runs after the grace period is abandoned: its
    result is discarded, and it does not keep the process from exiting. Once `max_abandoned` tasks
    are abandoned, further coroutines are refused.

        result = await tasks.run_with_deadline(
            workflow.run_async, seconds=60.0, before_cancel=close_models
        )
    """

    def __init__(
        self, *, max_abandoned: int = MAX_ABANDONED, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self._max_abandoned = max_abandoned
        self._grace_seconds = grace_seconds
        self._abandoned: set[asyncio.Task[Any]] = set()

    @property
    def num_abandoned(self) -> int:
        """The number of abandoned tasks that still run."""
        return len(self._abandoned)

    async def run_with_deadline(
        self,
        function: Callable[[], Coroutine[None, None, ValueT]],
        *,
        seconds: float,
        before_cancel: Callable[[], Awaitable[None]],
        clock: WorkClock | None = None,
    ) -> ValueT:
        """Returns the coroutine's result; `before_cancel` is awaited before it is cancelled.

        The seconds are those of `clock`, else of the machine.

        Raises: DeadlineExceeded, LoopBlocked when a step of it held the event loop, RuntimeError
        when too many tasks are abandoned, the coroutine's errors.
        """
        if len(self._abandoned) >= self._max_abandoned:
            raise RuntimeError(
                f"{self._max_abandoned} workflows still run past their time limit though they were "
                "cancelled, and no more are started: let the workflow end at asyncio.CancelledError"
            )
        run = RunOnLoop()
        task = asyncio.create_task(_capture_system_exit(function, run))
        task.add_done_callback(self._on_done)
        try:
            await (clock or WorkClock()).wait_for(task, seconds)
            has_timed_out = not task.done()
        finally:
            await self._end(task, before_cancel)
        if run.blocked:
            raise LoopBlocked(run.blocked)
        if has_timed_out:
            raise DeadlineExceeded
        result = task.result()
        if isinstance(result, SystemExit):
            raise result
        return result

    async def _end(
        self, task: asyncio.Task[Any], before_cancel: Callable[[], Awaitable[None]]
    ) -> None:
        if task.done():
            return
        try:
            await before_cancel()
        finally:
            task.cancel()
            try:
                await asyncio.wait({task}, timeout=self._grace_seconds)
            finally:
                self._abandon(task)

    def _abandon(self, task: asyncio.Task[Any]) -> None:
        """Unregisters a task that still runs, so that closing the event loop does not await it."""
        if not task.done():
            logger.warning("a workflow still runs though it was cancelled")
            self._abandoned.add(task)
            abandon_task(task)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        """Retrieves the exception of an abandoned task, so that asyncio does not log it."""
        self._abandoned.discard(task)
        if not task.cancelled():
            task.exception()


async def _capture_system_exit(
    function: Callable[[], Coroutine[None, None, ValueT]], run: RunOnLoop
) -> ValueT | SystemExit:
    """Returns SystemExit as a value: raised by a task, it would end the event loop."""
    try:
        with watched_run(run):
            return await function()
    except SystemExit as error:
        return error


class RunTimeLimit:
    """Applies `max_timeout`; with `dynamic_timeout` at most a multiple of training runs' mean time.

    Evaluations use other sampling, so they keep the full `max_timeout`.

    limit.record(assignment, seconds)  # for each run that ended
    limit.seconds_for(assignment)
    """

    def __init__(self, config: ExplorerConfig) -> None:
        self._max_seconds = config.max_timeout
        self._dynamic = config.dynamic_timeout
        self._steps: set[int] = set()
        self._num_runs = 0
        self._seconds = 0.0

    def record(self, assignment: Assignment, seconds: float) -> None:
        """Records how long a run took."""
        if assignment.kind is RolloutKind.EVAL:
            return
        self._steps.add(assignment.explore_step)
        self._num_runs += 1
        self._seconds += seconds

    def seconds_for(self, assignment: Assignment) -> float:
        """Returns the limit in seconds; the newest step may still be running and is not counted."""
        is_known = len(self._steps) > self._dynamic.warmup_min_steps
        if assignment.kind is RolloutKind.EVAL or not self._dynamic.enable or not is_known:
            return self._max_seconds
        usual = self._dynamic.ratio * self._seconds / self._num_runs
        return min(self._max_seconds, max(usual, MIN_SECONDS))


class FailureLog:
    """Logs the first failure at a place of the user's code with its traceback, others by count.

    failures.report(error, attempt)   # a traceback; later "a run failed again", with `times`
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()
        self._repeated = RateLimitedLog(logger)
        self._num_failures = 0

    def report(self, error: BaseException, attempt: Attempt) -> None:
        """Logs a failure of a workflow."""
        self._num_failures += 1
        place = _kind_and_place(error)
        about: dict[str, object] = {"assignment": attempt.assignment.id, "run": attempt.run}
        if place not in self._told and len(self._told) < MAX_PLACES:
            self._told.add(place)
            self._report_first(error, about)
            return
        self._repeated.warning(
            "runs go on failing",
            {"reason": place[0] + place[1]},
            last=_reason(error),
            failures=self._num_failures,
        )

    def _report_first(self, error: BaseException, about: dict[str, object]) -> None:
        if isinstance(error, UserCodeFailed):
            text = redact_passwords(error.failure.traceback)
            logger.warning("a run failed", extra={**about, "traceback": text})
            return
        if isinstance(error, BadReward):
            logger.warning("a run failed", extra={**about, "reason": _reason(error)})
            return
        logger.warning("a run failed", extra=about, exc_info=error)


class AttemptRunner:
    """Turns whatever a workflow does into an `AttemptResult`; raises only EngineDied."""

    def __init__(
        self,
        *,
        factory: WorkflowFactory,
        engine: Engine,
        limit: RunTimeLimit,
        threads: DaemonThreads,
        tasks: DeadlineTasks,
        auxiliary: Sequence[Engine] = (),
        clock: WorkClock | None = None,
    ) -> None:
        self._clock = clock or WorkClock()
        self._engines = (engine, *auxiliary)
        self._factory = factory
        self._limit = limit
        self._threads = threads
        self._tasks = tasks
        self._failures = FailureLog()
        self._use = factory.part_use

    def runs_together(self, assignment: Assignment) -> bool:
        """True if one call of the task's workflow makes all runs of an assignment."""
        return self._factory.runs_together(assignment)

    async def run_attempt(self, attempt: Attempt, weights: WeightsId) -> AttemptResult:
        """Runs one attempt; see `run_attempts`."""
        (result,) = await self.run_attempts([attempt], weights)
        return result

    async def run_attempts(
        self, attempts: Sequence[Attempt], weights: WeightsId
    ) -> list[AttemptResult]:
        """Runs attempts at runs of one assignment in one call of its workflow.

        Cancelling the call aborts their requests in the engine.
        """
        begun, worked = time.monotonic(), self._clock.now()
        made: dict[int, list[Experience]] = {}
        try:
            made = await self._experiences(attempts, weights)
            self._limit.record(attempts[0].assignment, self._clock.now() - worked)
            failure = ""
        except (DeadlineExceeded, LoopBlocked) as error:
            failure = str(error)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            failure = f"the workflow cancelled itself: {_reason(error)}"
        except (Exception, SystemExit) as error:  # the edge of the user's code
            await self._check_engines()
            told = _with_task(error, attempts[0].assignment)
            failure = _reason(told)
            self._failures.report(told, attempts[0])
        await self._check_engines()  # a workflow may have caught a dead engine's error
        seconds = time.monotonic() - begun
        return [_result(attempt, made, failure, seconds) for attempt in attempts]

    async def _experiences(
        self, attempts: Sequence[Attempt], weights: WeightsId
    ) -> dict[int, list[Experience]]:
        """Runs the workflow; when this returns, no attempt uses the engine any more."""
        model = self._factory.create_model(attempts[0], weights)
        made: dict[int, list[Experience]] = {}
        try:
            made = await self._run_workflow(attempts, model)
        finally:
            if not made and not model.session_turns:  # stored turns answer the next attempt
                metrics.LOST_TOKENS.add(model.num_drawn_tokens, LOST_WITH_RUN)
        return made

    async def _run_workflow(
        self, attempts: Sequence[Attempt], model: ModelWrapper
    ) -> dict[int, list[Experience]]:
        auxiliary = self._factory.create_auxiliary_models(attempts[0])
        try:
            images = await self._factory.load_images(attempts[0].assignment)
            spec = self._factory.workflow_spec(attempts, model, auxiliary, images)
            made = await self._call(spec, self._limit.seconds_for(attempts[0].assignment))
        finally:
            await _close((model, *auxiliary))
        self._use.after_run(
            attempts[0].assignment.taskset,
            called_reward=spec.called_reward,
            called_models=[each.num_engine_calls > 0 for each in auxiliary],
        )
        return {
            attempt.run: _validate_experiences(made[attempt.run], spec.name, attempt)
            for attempt in attempts
            if len(attempts) == 1 or made[attempt.run]
        }

    async def _check_engines(self) -> None:
        for engine in self._engines:
            await engine.check()

    async def _call(self, spec: WorkflowSpec | IsolatedSpec, seconds: float) -> Made:
        try:
            if isinstance(spec, IsolatedSpec):
                return await self._once_begun(spec.run_in_process, seconds)
            if isinstance(spec, HostedSpec):
                return await self._run_in_thread(spec, seconds)
            return await self._tasks.run_with_deadline(
                spec.run_on_loop,
                seconds=seconds,
                before_cancel=lambda: _close(spec.models),
                clock=self._clock,
            )
        except DeadlineExceeded as error:
            where = f": {spec.stuck_at}" if spec.stuck_at else ""
            raise DeadlineExceeded(
                f"it took more than {seconds:g} s (`explorer.max_timeout`){where}"
            ) from error

    async def _run_in_thread(self, spec: HostedSpec, seconds: float) -> Made:
        run = partial(self._threads.run_in_thread, spec.run_in_thread)
        return await self._once_begun(run, seconds)

    async def _once_begun(
        self, call: Callable[[Callable[[], None]], Awaitable[Made]], seconds: float
    ) -> Made:
        """Awaits a call whose time begins once it has a thread or a process.

        Raises: DeadlineExceeded.
        """
        limit = asyncio.timeout(None)
        ends: list[asyncio.Task[None]] = []

        async def end_in_time() -> None:
            await self._clock.sleep(seconds)
            limit.reschedule(asyncio.get_running_loop().time())

        try:
            async with limit:
                return await call(lambda: ends.append(asyncio.create_task(end_in_time())))
        except TimeoutError as error:
            if limit.expired():
                raise DeadlineExceeded from error
            raise
        finally:
            for end in ends:
                end.cancel()


def _result(
    attempt: Attempt, made: dict[int, list[Experience]], failure: str, seconds: float
) -> AttemptResult:
    experiences = made.get(attempt.run, [])
    if not failure and not experiences:
        failure = "the workflow made other runs of the task, but no experience for this one"
    return AttemptResult(
        attempt=attempt, experiences=experiences, failure=failure, duration_seconds=seconds
    )


async def _close(models: Sequence[ModelWrapper]) -> None:
    for model in models:
        await model.close()


def _experience_id(attempt: Attempt, step: int) -> EID:
    assignment = attempt.assignment
    return EID(
        stage=attempt.key.stage,
        batch=assignment.explore_step,
        task=assignment.position,
        run=attempt.run,
        attempt=attempt.number,
        step=step,
        suffix="",
    )


def _validate_experiences(
    experiences: Sequence[Experience], name: str, attempt: Attempt
) -> list[Experience]:
    """Repeats the buffer's validation: here a failure has a traceback and a retry."""
    if not isinstance(experiences, list) or not experiences:
        raise ValueError(f"{name} returned no list of experiences")
    check_are_distinct(experiences, name)
    validated = []
    place = tracing.current()
    own_trace = place.trace_hex if place else ""
    for step, experience in enumerate(experiences):
        _check_is_of_policy(experience, name)
        reward = as_reward(experience.reward, name)
        trace_id = experience.trace_id or own_trace
        eid = _experience_id(attempt, step)
        experience = replace(experience, eid=eid, trace_id=trace_id, reward=reward)
        check_experience(experience)
        validated.append(experience)
    return validated


def _check_is_of_policy(experience: object, name: str) -> None:
    if not isinstance(experience, Experience):
        raise TypeError(f"{name} returned {type(experience).__name__}, not an Experience")
    if other := experience.info.get(AUXILIARY_MODEL):
        raise ValueError(
            f"{name} returned an answer of the auxiliary model `{other}` as an experience: "
            "only what `self.model` answers is the policy's"
        )


def _with_task(error: BaseException, assignment: Assignment) -> BaseException:
    """Returns the error; the sentence on a reward says for which task it was."""
    if not isinstance(error, BadReward):
        return error
    return BadReward(f"{error} (task {assignment.task_index} of {assignment.taskset!r})")


def _reason(error: BaseException) -> str:
    """Returns the traceback's last line, with the file and line where it happened.

    What a reward returned is not known to any line: the sentence names the reward.
    """
    if isinstance(error, UserCodeFailed | BadReward):
        return redact_passwords(str(error))[:MAX_REASON_CHARACTERS]
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    return redact_passwords(last + place_of(error))[:MAX_REASON_CHARACTERS]


def _kind_and_place(error: BaseException) -> tuple[str, str]:
    if isinstance(error, UserCodeFailed):
        return error.failure.kind, error.failure.place
    return type(error).__name__, place_of(error)
