"""A run ends in the same weights whatever is killed on the way, and however weights travel."""

import random
from functools import partial

import pytest

from tests.e2e.conftest import End, Launch, end_of
from tests.e2e.launched import CONFIG, Launched

pytestmark = pytest.mark.timeout(900)
BY_COLLECTIVE = "synchronizer: {{sync_method: nccl}}\n"
RECEIVED = "weights received from the trainer's memory"


def test_whatever_is_killed_the_run_ends_in_the_same_weights(
    launch: Launch, undisturbed_end: End
) -> None:
    """Weights go from memory to memory here, and by files in the undisturbed run."""
    run = launch("killed", CONFIG + BY_COLLECTIVE)
    run.start()
    victims = ["explorer", "trainer", "buffer", "rank", "synchronizer", "nats", "postgres"]
    random.Random(11).shuffle(victims)
    for version, victim in enumerate(victims):
        run.wait_until(partial(run.has_version, "rft", version), f"version {version}")
        run.kill(victim)
    assert run.wait() == 0, run.text
    for victim in set(victims) - {"rank"}:
        assert f"restarted {victim}" in run.text
    assert end_of(run) == undisturbed_end
    assert num_received(run) > 0


def num_received(run: Launched) -> int:
    """Versions that explorers took from the trainer's memory."""
    logs = (run.job_dir / "log").glob("explorer*")
    return sum(path.read_text().count(RECEIVED) for path in logs)
