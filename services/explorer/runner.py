"""Runs one attempt at a run: a workflow with a limit of time, whose end is always an outcome."""

import asyncio
import logging
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from services.explorer.engine import Engine
from services.explorer.outcome import Attempt, Outcome
from services.explorer.time_limit import TimeLimit
from services.explorer.weights import WeightsId
from services.explorer.workbench import Workbench
from trinity.masking import without_passwords
from trinity.sample_check import check_experience
from trinity.telemetry import tracing
from trinity.threads import DaemonThreads
from trinity.types import EID, Experience
from trinity.workflows.model import AUXILIARY_MODEL
from trinity.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 500
MAX_LOST_THREADS = 256
"""Threads of runs whose time is over; each keeps what its workflow holds."""


class _TimeOver(Exception):
    """The attempt took longer than it may."""


class Runner:
    """Whatever a workflow does becomes an `Outcome`; only a dead engine is raised: EngineDied."""

    def __init__(
        self,
        *,
        workbench: Workbench,
        engine: Engine,
        limit: TimeLimit,
        threads: DaemonThreads,
        auxiliary: Sequence[Engine] = (),
    ) -> None:
        self._engines = (engine, *auxiliary)
        self._workbench = workbench
        self._limit = limit
        self._threads = threads

    async def run(self, attempt: Attempt, weights: WeightsId) -> Outcome:
        """Cancelling this call aborts what the engine generates for it."""
        begun = time.monotonic()
        try:
            experiences = await self._experiences(attempt, weights)
            self._limit.note(attempt.assignment, time.monotonic() - begun)
            failure = ""
        except _TimeOver as error:
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
        return Outcome(
            attempt=attempt,
            experiences=experiences,
            failure=failure,
            duration_seconds=time.monotonic() - begun,
        )

    async def _experiences(self, attempt: Attempt, weights: WeightsId) -> list[Experience]:
        """When this is over, nothing of the attempt has a hold on the engine any more."""
        model = self._workbench.model(attempt, weights)
        beside = self._workbench.auxiliary_models(attempt)
        try:
            workflow = self._workbench.workflow(attempt, model, beside)
            experiences = await self._call(workflow, self._limit.of(attempt.assignment))
        finally:
            for one in (model, *beside):
                await one.close()
        return _checked(experiences, workflow, attempt)

    async def _check_engines(self) -> None:
        for engine in self._engines:
            await engine.check()

    async def _call(self, workflow: Workflow, seconds: float) -> list[Experience]:
        """A workflow without `is_async` may block: it gets a thread, and time when it has one."""
        limit = asyncio.timeout(seconds if workflow.is_async else None)
        try:
            async with limit:
                if workflow.is_async:
                    return await workflow.run_async()
                if self._threads.num_lost >= MAX_LOST_THREADS:
                    raise RuntimeError(
                        f"{MAX_LOST_THREADS} threads of runs whose time was over still go on; "
                        f"{type(workflow).__name__} blocks somewhere without a limit of its own"
                    )
                loop = asyncio.get_running_loop()
                return await self._threads.run(
                    workflow.run, lambda: limit.reschedule(loop.time() + seconds)
                )
        except TimeoutError as error:
            if limit.expired():
                raise _TimeOver(
                    f"it took more than {seconds:g} s (`explorer.max_timeout`)"
                ) from error
            raise


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


def _checked(
    experiences: list[Experience], workflow: Workflow, attempt: Attempt
) -> list[Experience]:
    """Find here what the buffer would refuse: here it has a traceback and another try."""
    name = type(workflow).__name__
    if not isinstance(experiences, list) or not experiences:
        raise ValueError(f"{name} gave no list of experiences")
    placed = []
    place = tracing.current()
    own_trace = place.trace_hex if place else ""
    for step, experience in enumerate(experiences):
        if not isinstance(experience, Experience):
            raise TypeError(f"{name} gave {type(experience).__name__}, not an Experience")
        if other := experience.info.get(AUXILIARY_MODEL):
            raise ValueError(
                f"{name} gave an answer of the auxiliary model `{other}` as an experience: only "
                "what `self.model` answers is the policy's"
            )
        trace_id = experience.trace_id or own_trace
        placed.append(replace(experience, eid=_eid(attempt, step), trace_id=trace_id))
        check_experience(placed[-1])
    return placed


def _reason(error: BaseException) -> str:
    """The traceback's last line, and where in whose file it happened."""
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return without_passwords(last + where)[:MAX_REASON_CHARACTERS]
