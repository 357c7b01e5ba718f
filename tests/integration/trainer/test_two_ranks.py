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

from tests.integration.trainer.learners import assert_same, state_of
from tests.integration.trainer.shared_sequences import SHARED_CASES, Arrays, step_arrays
from tests.integration.trainer.step_on_rank import (
    CASES,
    CONTROL,
    NUM_STEPS,
    RATE,
    RESIZED,
    SAVED_STEP,
    STATE,
    checkpoint_of,
)
from tests.integration.trainer.vision_rows import (
    RANKS_CASES,
    close,
    gradients_by_transformers,
)

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

pytestmark = pytest.mark.timeout(900)

SECONDS = 600
"""Patience with a machine that does other things as well."""
Found = dict[str, npt.NDArray[np.float64]]
ROUNDING = 2e-6
"""Of log-probabilities: processors differ in the kernels for other numbers of rows."""


def run_gang(num_ranks: int, *arguments: Path) -> Found:
    """Train with a gang, and return what the first rank leaves."""
    start_gang(num_ranks, "tests.integration.trainer.step_on_rank", *arguments)
    return dict(np.load(arguments[1]))


def start_gang(
    num_ranks: int, module: str, *arguments: Path, num_per_host: int | None = None
) -> None:
    """Start the ranks as the service does, on one host, and wait until they have ended well."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shared = os.environ | {
            "WORLD_SIZE": str(num_ranks),
            "LOCAL_WORLD_SIZE": str(num_per_host or num_ranks),  # verl sets one in this process
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(listener.getsockname()[1]),
            "TRINITY_RANK_STORE_FD": str(listener.fileno()),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *(sys.executable, "-m", module),
            *map(str, arguments),
        ]
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the gang of two leaves its checkpoints."""
    return tmp_path_factory.mktemp("gang")


@pytest.fixture(scope="module")
def of_two_ranks(model: Path, folder: Path) -> Found:
    """What a gang of two came to in every case."""
    return run_gang(2, model, folder / "two.npz")


def state_in(found: Found, name: str) -> Found:
    """What its checkpoint was written of."""
    prefix = f"{name}/{STATE}"
    return {key.removeprefix(prefix): found[key] for key in found if key.startswith(prefix)}


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
            assert found == pytest.approx(expected, rel=1e-4, abs=5e-6), (figure, step)
    assert of_two_ranks[f"{name}/rows"].tolist() == sorted(outcome.rows)
    assert of_two_ranks[f"{name}/resumed_is_same"], "the same gang comes to the same bits"


@pytest.mark.parametrize("name", CASES)
def test_one_rank_goes_on_from_a_checkpoint_of_two(
    ranks: "Ranks", model: Path, folder: Path, of_two_ranks: Found, name: str
) -> None:
    from services.trainer.learner.learner import Learner

    case = CASES[name]
    learner = Learner(plan=case.plan(model, max_tokens=8192), model_directory=model, ranks=ranks)
    learner.load(checkpoint_of(folder, name))
    assert_same(state_of(learner), state_in(of_two_ranks, name))
    for step in range(SAVED_STEP + 1, NUM_STEPS + 1):
        outcome = learner.train_step(case.batch(step), RATE, RATE)
        for figure in case.figures:
            found = of_two_ranks[f"{name}/{figure}"][step - 1]
            assert found == pytest.approx(outcome.metrics[figure], rel=1e-4, abs=5e-6), figure


@pytest.mark.thorough
def test_three_ranks_load_what_two_wrote_bit_for_bit(
    model: Path, folder: Path, of_two_ranks: Found
) -> None:
    found = run_gang(3, model, folder / "three.npz", folder)
    for name in RESIZED:
        assert_same(state_in(found, name), state_in(of_two_ranks, name))


@pytest.mark.thorough
def test_two_ranks_load_what_one_wrote_bit_for_bit(
    ranks: "Ranks", model: Path, tmp_path: Path
) -> None:
    from services.trainer.checkpoints.checkpoints import CheckpointStore
    from services.trainer.learner.learner import Learner

    expected = {}
    for name in RESIZED:
        case = CASES[name]
        plan = case.plan(model, max_tokens=8192)
        learner = Learner(plan=plan, model_directory=model, ranks=ranks)
        for step in range(1, SAVED_STEP + 1):
            learner.train_step(case.batch(step), RATE, RATE)
        root = checkpoint_of(tmp_path, name).parent
        store = CheckpointStore(root=root, stage="rft", ranks=ranks)
        store.write(learner, step=SAVED_STEP, incarnation=1)
        expected[name] = state_of(learner)
    found = run_gang(2, model, tmp_path / "two.npz", tmp_path)
    for name in RESIZED:
        assert_same(state_in(found, name), expected[name])


def assert_as_of_one_rank(
    of_one: Arrays, of_two: Found, prefix: str, output_atol: float = ROUNDING
) -> None:
    """Gradients are sums in another order."""
    for name, expected in of_one.items():
        found = of_two[f"{prefix}/{name}"]
        if name.startswith("gradient/"):
            atol = 1e-5 * max(1.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol, err_msg=name)
        elif name.startswith("output/"):
            np.testing.assert_allclose(found, expected, rtol=0, atol=output_atol, err_msg=name)
        else:
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("name", SHARED_CASES)
def test_ranks_that_share_each_sequence_compute_what_one_rank_does(
    ranks: "Ranks", model: Path, of_two_ranks: Found, name: str
) -> None:
    of_one = step_arrays(SHARED_CASES[name], model, ranks, 1)
    assert any(np.any(array) for key, array in of_one.items() if key.startswith("gradient/"))
    atol = (
        1e-5 if SHARED_CASES[name].has_experts else ROUNDING
    )  # experts multiply other sets of rows
    assert_as_of_one_rank(of_one, of_two_ranks, f"shared/{name}", atol)


def test_a_part_of_a_row_in_the_wrong_place_is_found(
    ranks: "Ranks", model: Path, of_two_ranks: Found
) -> None:
    """The control: both comparisons fail if ranks join the parts of a row in another order."""
    of_one = step_arrays(SHARED_CASES[CONTROL], model, ranks, 1)
    for kind in ("output/", "gradient/"):
        part = {name: array for name, array in of_one.items() if name.startswith(kind)}
        with pytest.raises(AssertionError, match=r"Not equal to tol"):
            assert_as_of_one_rank(part, of_two_ranks, f"control/{CONTROL}")


@pytest.mark.parametrize("name", RANKS_CASES)
def test_two_ranks_train_with_images_as_transformers_alone_does(
    of_two_ranks: Found, tmp_path: Path, name: str
) -> None:
    case = RANKS_CASES[name]
    expected = gradients_by_transformers(tmp_path, case.rows(tmp_path))
    prefix = f"vision/{name}/"
    found = {key: array for key, array in of_two_ranks.items() if key.startswith(prefix)}
    if "freeze_vision_tower" in case.trainer:
        expected = {key: array for key, array in expected.items() if "visual" not in key}
    else:
        assert any("visual" in key and np.abs(array).max() > 1e-5 for key, array in found.items())
    close(expected, {key: found[prefix + key].astype(np.float32) for key in expected})
