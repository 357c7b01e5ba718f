"""The time limit of one attempt at a run."""

from services.explorer.assignments import Assignment, Kind
from trinity.config.explorer import ExplorerConfig

LEAST_SECONDS = 1.0
"""Lower bound: the time of short runs depends more on the machine than on the run."""


class TimeLimit:
    """Applies `max_timeout`; with `dynamic_timeout` at most a multiple of training runs' mean time.

    Evaluations use other sampling, so they keep the full `max_timeout`.

    limit.note(assignment, seconds)     # for each run that ended
    limit.of(assignment)
    """

    def __init__(self, config: ExplorerConfig) -> None:
        self._most = config.max_timeout
        self._dynamic = config.dynamic_timeout
        self._steps: set[int] = set()
        self._num_runs = 0
        self._seconds = 0.0

    def note(self, assignment: Assignment, seconds: float) -> None:
        """Records how long a run took."""
        if assignment.kind is Kind.EVAL:
            return
        self._steps.add(assignment.explore_step)
        self._num_runs += 1
        self._seconds += seconds

    def of(self, assignment: Assignment) -> float:
        """Returns the limit in seconds; the newest step may still be running and is not counted."""
        is_known = len(self._steps) > self._dynamic.warmup_min_steps
        if assignment.kind is Kind.EVAL or not self._dynamic.enable or not is_known:
            return self._most
        usual = self._dynamic.ratio * self._seconds / self._num_runs
        return min(self._most, max(usual, LEAST_SECONDS))
