"""Two ranks take the same steps as one."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.trainer.step_on_rank import FIGURES, NUM_ROWS, NUM_STEPS, RATE
from tests.unit.trainer.builders import make_plan, random_batch

if TYPE_CHECKING:
    from services.trainer.ranks import Ranks


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
    assert [process.wait(timeout=180) for process in gang] == [0] * num_ranks


def test_two_ranks_train_as_one_does_and_go_on_from_their_checkpoint(
    ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.learner import Learner

    run_gang(2, [str(model), str(tmp_path / "two.npz")])
    grpo = {"algorithm_type": "grpo", "repeat_times": 8}
    learner = Learner(plan=make_plan(model, grpo), model_directory=model, ranks=ranks)
    two = np.load(tmp_path / "two.npz")
    for step in range(1, NUM_STEPS + 1):
        outcome = learner.train_step(random_batch(NUM_ROWS, seed=step, step=step), RATE)
        for name in FIGURES:
            figure = two[name][step - 1]
            assert figure == pytest.approx(outcome.metrics[name], rel=1e-4, abs=1e-7), (name, step)
    assert two["rows"].tolist() == sorted(outcome.rows)
    assert two["resumed_is_same"], "the same gang comes to the same bits"
    # Adam's first step moves by the rate in the gradient's direction, whatever its size: where that
    # is all but zero, as for the biases of keys, rounding decides.
    differences = [np.abs(two[name] - t.numpy()).ravel() for name, t in learner.weights()]
    assert np.mean(np.concatenate(differences) > 1e-5) < 1e-3
