"""Runs one attempt at a run: a workflow with a time limit, which always ends in an outcome."""

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from services.explorer.bounded_tasks import BoundedTasks, TimeOver
from services.explorer.engine import Engine
from services.explorer.making import Making
from services.explorer.outcome import Attempt, Outcome
from services.explorer.time_limit import TimeLimit
from services.explorer.weights_types import WeightsId
from services.explorer.workbench import Workbench
from trinity.masking import without_passwords
from trinity.sample_check import check_experience
from trinity.telemetry import tracing
from trinity.threads import DaemonThreads
from trinity.types import EID, Experience
from trinity.workflows.model import AUXILIARY_MODEL, ModelWrapper

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 500


class Runner:
    """Turns whatever a workflow does into an `Outcome`; raises only EngineDied."""

    def __init__(
        self,
        *,
        workbench: Workbench,
        engine: Engine,
        limit: TimeLimit,
        threads: DaemonThreads,
        tasks: BoundedTasks,
        auxiliary: Sequence[Engine] = (),
    ) -> None:
        self._engines = (engine, *auxiliary)
        self._workbench = workbench
        self._limit = limit
        self._threads = threads
        self._tasks = tasks

    async def run(self, attempt: Attempt, weights: WeightsId) -> Outcome:
        """Runs the attempt; cancelling the call aborts what the engine generates for it."""
        begun = time.monotonic()
        try:
            experiences = await self._experiences(attempt, weights)
            self._limit.note(attempt.assignment, time.monotonic() - begun)
            failure = ""
        except TimeOver as error:
            experiences, failure = [], str(error)
        except asyncio.CancelledError as error:
            if _is_cancelled_from_outside():
                raise
            experiences, failure = [], f"the workflow cancelled itself: {_reason(error)}"
        except (Exception, SystemExit) as error:  # the edge of the user's code
            await self._check_engines()
            experiences, failure = [], _reason(error)
            logger.warning(
                "a run failed",
                extra={"assignment": attempt.assignment.id, "run": attempt.run},
                exc_info=error,
            )
        await self._check_engines()  # a workflow may have caught a dead engine's error
        return Outcome(
            attempt=attempt,
            experiences=experiences,
            failure=failure,
            duration_seconds=time.monotonic() - begun,
        )

    async def _experiences(self, attempt: Attempt, weights: WeightsId) -> list[Experience]:
        """Runs the workflow; once this returns, nothing of the attempt uses the engine."""
        model = self._workbench.model(attempt, weights)
        auxiliary = self._workbench.auxiliary_models(attempt)
        try:
            making = self._workbench.making(attempt, model, auxiliary)
            experiences = await self._call(making, self._limit.of(attempt.assignment))
        finally:
            await _close((model, *auxiliary))
        return _checked(experiences, making.kind.__name__, attempt)

    async def _check_engines(self) -> None:
        for engine in self._engines:
            await engine.check()

    async def _call(self, making: Making, seconds: float) -> list[Experience]:
        try:
            if making.blocks:
                return await self._in_thread(making, seconds)
            return await self._tasks.run(
                lambda: self._on_loop(making),
                seconds=seconds,
                before_end=lambda: _close((making.model, *making.auxiliary_models)),
            )
        except TimeOver as error:
            raise TimeOver(f"it took more than {seconds:g} s (`explorer.max_timeout`)") from error

    async def _in_thread(self, making: Making, seconds: float) -> list[Experience]:
        """Runs the workflow in a thread; its time begins once it has one."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                loop = asyncio.get_running_loop()
                return await self._threads.run(
                    lambda: making.make().run(), lambda: limit.reschedule(loop.time() + seconds)
                )
        except TimeoutError as error:
            if limit.expired():
                raise TimeOver from error
            raise

    async def _on_loop(self, making: Making) -> list[Experience]:
        workflow = await making.make_on_loop()
        if not workflow.is_async:  # a property may decide this per instance
            return await self._threads.run(workflow.run)
        return await workflow.run_async()


async def _close(models: Sequence[ModelWrapper]) -> None:
    for model in models:
        await model.close()


def _is_cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _eid(attempt: Attempt, step: int) -> EID:
    assignment = attempt.assignment
    return EID(
        stage=attempt.key.stage,
        explore_step=assignment.explore_step,
        position=assignment.position,
        run=attempt.run,
        attempt=attempt.number,
        step=step,
    )


def _checked(experiences: list[Experience], name: str, attempt: Attempt) -> list[Experience]:
    """Validates here what the buffer would refuse: here it has a traceback and a retry."""
    if not isinstance(experiences, list) or not experiences:
        raise ValueError(f"{name} returned no list of experiences")
    placed = []
    place = tracing.current()
    own_trace = place.trace_hex if place else ""
    for step, experience in enumerate(experiences):
        if not isinstance(experience, Experience):
            raise TypeError(f"{name} returned {type(experience).__name__}, not an Experience")
        if other := experience.info.get(AUXILIARY_MODEL):
            raise ValueError(
                f"{name} returned an answer of the auxiliary model `{other}` as an experience: "
                "only what `self.model` answers is the policy's"
            )
        trace_id = experience.trace_id or own_trace
        placed.append(replace(experience, eid=_eid(attempt, step), trace_id=trace_id))
        check_experience(placed[-1])
    return placed


def _reason(error: BaseException) -> str:
    """Returns the traceback's last line, with the file and line where it happened."""
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return without_passwords(last + where)[:MAX_REASON_CHARACTERS]
