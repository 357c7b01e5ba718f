"""A run ends in the same weights whatever is killed on the way."""

import random
from functools import partial

import pytest

from tests.e2e.conftest import End, Launch, end_of

pytestmark = pytest.mark.timeout(900)


def test_whatever_is_killed_the_run_ends_in_the_same_weights(
    launch: Launch, undisturbed_end: End
) -> None:
    run = launch("killed")
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
