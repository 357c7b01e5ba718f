"""The number of workflow runs in progress at a time."""

from trinity.config.plan.stage_plan import StagePlan

RUNS_PER_RUNNER = 64
"""The default; TRINITY_EXPLORER_RUNS_PER_RUNNER overrides it where the explorer runs."""


def runs_at_a_time(stage: StagePlan) -> int:
    """Returns the number per engine, if there is enough to do."""
    return stage.config.explorer.runner_per_model * RUNS_PER_RUNNER
