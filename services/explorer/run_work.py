"""One run of an assignment: attempts until one is complete, and the buffer's reports on them."""

import logging
from collections.abc import Callable
from dataclasses import replace

from services.explorer.assignments import Assignment
from services.explorer.failures import StageFailed
from services.explorer.gate import WeightGate
from services.explorer.long_runs import LongRuns
from services.explorer.lost_watch import LostWatch
from services.explorer.outcome import Attempt, Outcome, outcome_to_proto
from services.explorer.reports import Fate
from services.explorer.runner import Runner
from services.explorer.telemetry import sampled, sampling
from services.explorer.unconfirmed import Unconfirmed
from trinity.api.v1.experience_pb2 import RunResult
from trinity.types import StageKey

logger = logging.getLogger(__name__)


class RunWork:
    """Executes the runs of a stage, any number of them at a time."""

    def __init__(
        self,
        *,
        key: StageKey,
        max_attempts: int,
        runner: Runner,
        gate: WeightGate,
        unconfirmed: Unconfirmed,
        lost: LostWatch,
        long_runs: LongRuns,
    ) -> None:
        self._key = key
        self._max_attempts = max_attempts
        self._runner = runner
        self._gate = gate
        self._unconfirmed = unconfirmed
        self._lost = lost
        self._long_runs = long_runs

    async def work(
        self, assignment: Assignment, run: int, on_attempts_over: Callable[[], None]
    ) -> bool:
        """Executes a run; returns false if the buffer refused results and recorded a failure."""
        attempt = Attempt(key=self._key, assignment=assignment, run=run, number=-1)
        reports = []
        for number in self._numbers(assignment):
            attempt = replace(attempt, number=number)
            async with self._gate.hold(assignment.required) as weights:
                with self._long_runs.going_on(attempt), sampling(attempt, weights) as span:
                    outcome = await self._runner.run(attempt, weights)
                    sampled(span, outcome)
            self._lost.look()
            message = _message(replace(outcome, traceparent=span.traceparent))
            reports.append(self._unconfirmed.add(message))
            if message.state == RunResult.STATE_COMPLETE:
                break
        on_attempts_over()
        for report in [await future for future in reports]:
            if report.fate is Fate.REJECTED:
                await self._report_refused(attempt, report.reason)
                return False
        return True

    def _numbers(self, assignment: Assignment) -> range:
        return range(assignment.first_attempt, assignment.first_attempt + self._max_attempts)

    async def _report_refused(self, last: Attempt, reason: str) -> None:
        """Reports a failed attempt, without which the run of a refused result would never end.

        Raises: StageFailed when the buffer refuses that too.
        """
        assignment = last.assignment
        logger.error(
            "the buffer refused a result: the run counts as failed",
            extra={"assignment": assignment.id, "run": last.run, "reason": reason},
        )
        attempt = replace(last, number=last.number + 1)
        failure = f"the buffer refused attempt {last.number}: {reason}"
        report = await self._unconfirmed.add(
            outcome_to_proto(Outcome(attempt=attempt, failure=failure))
        )
        if report.fate is Fate.REJECTED:
            raise StageFailed(
                f"the buffer refuses results of assignment {assignment.id} and their failure: "
                f"{report.reason}"
            )


def _message(outcome: Outcome) -> RunResult:
    """Converts an outcome; one that cannot be serialized becomes a failure of its workflow."""
    try:
        return outcome_to_proto(outcome)
    except Exception as error:  # the user's values, of whatever type
        failure = f"its experiences cannot be sent: {type(error).__name__}: {error}"
        return outcome_to_proto(Outcome(attempt=outcome.attempt, failure=failure))
