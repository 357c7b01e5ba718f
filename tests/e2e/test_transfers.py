"""Weights that go from memory to memory, and stores that are there already, change no bit."""

import pytest

from tests.e2e.conftest import End, Launch, end_of
from tests.e2e.launched import CONFIG, Launched

pytestmark = pytest.mark.timeout(1000)
BY_COLLECTIVE = "synchronizer: {{sync_method: nccl}}\n"
RECEIVED = "weights received from the trainer's memory"


def test_a_run_by_collective_on_given_stores_ends_with_the_same_weights_bit_for_bit(
    launch: Launch, undisturbed_end: End, nats_url: str, postgres_dsn: str
) -> None:
    run = launch("collective", CONFIG + BY_COLLECTIVE)
    run.start(TRINITY_NATS_URL=nats_url, TRINITY_POSTGRES_DSN=postgres_dsn)
    assert run.wait() == 0, run.text
    for own in ("postgres", "nats"):
        assert not (run.job_dir / "infra" / own).exists(), "it was given one"
    assert end_of(run) == undisturbed_end
    assert num_received(run) >= 6


def num_received(run: Launched) -> int:
    """Versions that explorers took from the trainer's memory."""
    logs = (run.job_dir / "log").glob("explorer*")
    return sum(path.read_text().count(RECEIVED) for path in logs)
