"""Names of the broker's subjects, for publishers and subscribers."""

RUNS_PREFIX = "trinity.runs"
RUNS_STREAM = "TRINITY_RUNS"
RUNS_CONSUMER = "buffer"
"""The stream that keeps what is published there, and its consumer, which stores it."""


def runs_subject(tenant: str, experiment_id: str, stage: str) -> str:
    """Returns the subject for the results of a stage's runs."""
    return f"{RUNS_PREFIX}.{tenant}.{experiment_id}.{stage}"
