"""A run whose engine is on two hosts, one of them killed amid it: it goes on once that is back."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.e2e.conftest import REPOSITORY, Launch
from tests.e2e.launched import CONFIG, SECONDS
from trinity.runtime.process.child_process import module_command

pytestmark = [pytest.mark.timeout(1000), pytest.mark.thorough]

OVER_TWO = CONFIG.replace("enforce_eager: true", "enforce_eager: true, tensor_parallel_size: 2")
NOBODY = "127.0.0.1:9"


def test_a_run_goes_on_when_a_host_of_its_engine_was_killed(launch: Launch) -> None:
    run = launch("hosts", OVER_TWO)
    run.start(TRINITY_EXPLORER_NUM_HOSTS="2", TRINITY_EXPLORER_ENGINE_ADDRESS="127.0.0.1")
    run.wait_until(lambda: run.has_version("warmup", 8), "step of the first stage")
    leader = psutil.Process(run.pid("explorer")).environ()["TRINITY_EXPLORER_LISTEN"]
    with second_host(leader):
        run.wait_until(lambda: run.has_version("rft", 2), "second step")
    run.wait_until(lambda: "restarted explorer" in run.text, "end of the engine")
    assert not run.has_version("rft", 8)
    with second_host(leader):
        assert run.wait() == 0, run.text
    assert run.has_version("rft", 8)


@contextmanager
def second_host(leader: str) -> Iterator[None]:
    """Killed at the end, as if it lost its power."""
    own = {
        "NUM_HOSTS": "2",
        "HOST": "1",
        "ENGINE_ADDRESS": "127.0.0.2",
        "LEADER": leader,
        "LISTEN": "127.0.0.2:0",
        "SYNCHRONIZER": NOBODY,
        "BUFFER": NOBODY,
        "NATS_URL": f"nats://{NOBODY}",
    }
    variables = {f"TRINITY_EXPLORER_{name}": value for name, value in own.items()}
    process = subprocess.Popen(
        module_command("services.explorer"),
        cwd=REPOSITORY,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
    )
    try:
        yield
    finally:
        process.kill()
        process.wait(SECONDS)
