"""How long one attempt at a run may take."""

from services.explorer.assignments import Assignment, Kind
from trinity.config.explorer import ExplorerConfig

LEAST_SECONDS = 1.0
"""What short runs take varies more with the machine than with the run."""


class TimeLimit:
    """`max_timeout`; with `dynamic_timeout` no more than a multiple of what training runs took.

    Evaluations are sampled otherwise, and keep the whole of it.

    limit.note(assignment, seconds)     # of each run that came to its end
    limit.of(assignment)
    """

    def __init__(self, config: ExplorerConfig) -> None:
        self._most = config.max_timeout
        self._dynamic = config.dynamic_timeout
        self._steps: set[int] = set()
        self._num_runs = 0
        self._seconds = 0.0

    def note(self, assignment: Assignment, seconds: float) -> None:
        """How long a run took."""
        if assignment.kind is Kind.EVAL:
            return
        self._steps.add(assignment.explore_step)
        self._num_runs += 1
        self._seconds += seconds

    def of(self, assignment: Assignment) -> float:
        """Seconds; runs of the newest step may still be going on, so it is not counted."""
        is_known = len(self._steps) > self._dynamic.warmup_min_steps
        if assignment.kind is Kind.EVAL or not self._dynamic.enable or not is_known:
            return self._most
        usual = self._dynamic.ratio * self._seconds / self._num_runs
        return min(self._most, max(usual, LEAST_SECONDS))
