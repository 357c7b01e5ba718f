"""Names of the broker's subjects, for publishers and subscribers."""

RUNS_PREFIX = "trinity.runs"
RUNS_STREAM = "TRINITY_RUNS"
RUNS_CONSUMER = "buffer"
"""The stream of messages with this prefix, and the consumer that stores them."""


def runs_subject(tenant: str, experiment_id: str, stage: str) -> str:
    """Returns the subject for the results of a stage's runs."""
    return f"{RUNS_PREFIX}.{tenant}.{experiment_id}.{stage}"
