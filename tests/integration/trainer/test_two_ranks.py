"""Two ranks take the same steps as one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest

from tests.integration.trainer.step_on_rank import CASES, NUM_STEPS, RATE

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

pytestmark = pytest.mark.timeout(900)

SECONDS = 600
"""Patience with a machine that does other things as well."""
Found = dict[str, npt.NDArray[np.float64]]


def run_gang(num_ranks: int, arguments: list[str]) -> None:
    """Start the ranks as the service does and wait for them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shared = os.environ | {
            "WORLD_SIZE": str(num_ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listener.getsockname()[1]),
            "TRINITY_RANK_STORE_FD": str(listener.fileno()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "tests.integration.trainer.step_on_rank", *arguments]
        gang = [
            subprocess.Popen(
                command,
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
            )
            for rank in range(num_ranks)
        ]
    assert [process.wait(timeout=SECONDS) for process in gang] == [0] * num_ranks


@pytest.fixture(scope="module")
def of_two_ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What a gang of two came to in every case."""
    output = tmp_path_factory.mktemp("gang") / "two.npz"
    run_gang(2, [str(model), str(output)])
    return dict(np.load(output))


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_does_and_go_on_from_their_checkpoint(
    ranks: "Ranks", model: Path, of_two_ranks: Found, name: str
) -> None:
    from services.trainer.learner.learner import Learner

    case = CASES[name]
    plan = case.plan(model, max_tokens=8192)
    learner = Learner(plan=plan, model_directory=model, ranks=ranks)
    for step in range(1, NUM_STEPS + 1):
        outcome = learner.train_step(case.batch(step), RATE, RATE)
        for figure in case.figures:
            found = of_two_ranks[f"{name}/{figure}"][step - 1]
            expected = outcome.metrics[figure]
            assert found == pytest.approx(expected, rel=1e-4, abs=1e-7), (figure, step)
    assert of_two_ranks[f"{name}/rows"].tolist() == sorted(outcome.rows)
    assert of_two_ranks[f"{name}/resumed_is_same"], "the same gang comes to the same bits"
