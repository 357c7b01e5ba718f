"""Runs one attempt at a run: a workflow with a limit of time, whose end is always an outcome."""

import asyncio
import logging
import math
import time
import traceback
from concurrent.futures import Executor
from dataclasses import replace

from services.explorer.engine import Engine
from services.explorer.outcome import Attempt, Outcome
from services.explorer.weights import WeightsId
from services.explorer.workbench import Workbench
from trinity.codec import check_sequence
from trinity.types import EID, Experience, Pair
from trinity.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 500


class Runner:
    """Whatever a workflow does becomes an `Outcome`; only a dead engine is raised: EngineDied."""

    def __init__(
        self, *, workbench: Workbench, engine: Engine, timeout_seconds: float, threads: Executor
    ) -> None:
        self._engine = engine
        self._workbench = workbench
        self._timeout_seconds = timeout_seconds
        self._threads = threads

    async def run(self, attempt: Attempt, weights: WeightsId) -> Outcome:
        """Cancelling this call aborts what the engine generates for it."""
        begun = time.monotonic()
        try:
            experiences = await self._experiences(attempt, weights)
            failure = ""
        except TimeoutError:
            experiences, failure = [], f"it took more than {self._timeout_seconds:g} s"
        except Exception as error:  # the edge of the user's code
            await self._engine.check()
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
        workflow = self._workbench.workflow(attempt, weights)
        async with asyncio.timeout(self._timeout_seconds):
            experiences = await self._call(workflow)
        _check(experiences, workflow)
        return [
            replace(experience, eid=_eid(attempt, step))
            for step, experience in enumerate(experiences)
        ]

    async def _call(self, workflow: Workflow) -> list[Experience]:
        """A workflow without `is_async` may block, so it gets a thread."""
        if workflow.is_async:
            return await workflow.run_async()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, workflow.run)


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


def _check(experiences: list[Experience], workflow: Workflow) -> None:
    """Find here what the buffer would refuse: here it has a traceback and another try."""
    name = type(workflow).__name__
    if not isinstance(experiences, list) or not experiences:
        raise ValueError(f"{name} gave no list of experiences")
    for experience in experiences:
        if not isinstance(experience, Experience):
            raise TypeError(f"{name} gave {type(experience).__name__}, not an Experience")
        body = experience.body
        for sequence in (body.chosen, body.rejected) if isinstance(body, Pair) else (body,):
            check_sequence(sequence)
        if experience.reward is not None and not math.isfinite(experience.reward):
            raise ValueError(f"{name} gave the reward {experience.reward}")


def _reason(error: Exception) -> str:
    """The traceback's last line, and where in whose file it happened."""
    last = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return (last + where)[:MAX_REASON_CHARACTERS]
