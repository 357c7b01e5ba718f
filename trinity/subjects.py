"""Names of the broker's subjects, for those who publish and those who listen."""

RUNS_PREFIX = "trinity.runs"


def runs_subject(tenant: str, experiment_id: str, stage: str) -> str:
    """Where the results of a stage's runs go."""
    return f"{RUNS_PREFIX}.{tenant}.{experiment_id}.{stage}"
