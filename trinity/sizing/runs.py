"""How many runs of workflows go on at a time."""

from trinity.config.plan import StagePlan

RUNS_PER_RUNNER = 64
"""Unless TRINITY_EXPLORER_RUNS_PER_RUNNER says otherwise where the explorer runs."""


def runs_at_a_time(stage: StagePlan) -> int:
    """On one engine, where there is as much to do."""
    return stage.config.explorer.runner_per_model * RUNS_PER_RUNNER
