"""Names of the broker's subjects, for those who publish and those who listen."""

RUNS_PREFIX = "trinity.runs"
RUNS_STREAM = "TRINITY_RUNS"
RUNS_CONSUMER = "buffer"
"""The stream that keeps what is published there, and whoever stores it."""


def runs_subject(tenant: str, experiment_id: str, stage: str) -> str:
    """Where the results of a stage's runs go."""
    return f"{RUNS_PREFIX}.{tenant}.{experiment_id}.{stage}"
