"""The example of an algorithm of one's own does what its README says, in fewer than 40 lines."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.custom_algorithm.hard_tasks import hard_tasks, held_close
from tests.unit.config.builders import write_model, write_rows
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Samples
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "custom_algorithm"
ROW = {"question": "1+1=", "answer": "2"}


def test_it_is_short() -> None:
    lines = (EXAMPLE / "hard_tasks.py").read_text().splitlines()
    assert len(lines) < 40
    assert len((EXAMPLE / "README.md").read_text().splitlines()) <= 13


def test_tasks_that_are_mostly_solved_weigh_less() -> None:
    samples = Samples.of_groups([1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0], [1.0, 1.0], [0.5])
    values = hard_tasks(samples, focus=1.0).values
    np.testing.assert_allclose(
        values, [0.5625, *[-0.1875] * 3, -0.1875, *[0.0625] * 3, 0.0, 0.0, 0.0]
    )
    assert ADVANTAGES.get("hard_tasks") is hard_tasks


def test_the_loss_is_a_policy_gradient_that_is_held_close() -> None:
    logprobs_BT = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    inputs = PolicyInputs(
        logprobs_BT=logprobs_BT,
        old_logprobs_BT=torch.tensor([[-1.0, -1.5]], dtype=torch.float64),
        advantages_BT=torch.tensor([[2.0, 0.0]], dtype=torch.float64),
        mask_BT=torch.tensor([[True, True]]),
    )
    loss = held_close(inputs, pull=0.5)
    assert loss.loss_BT is not None
    loss.loss_BT.sum().backward()
    np.testing.assert_allclose(loss.loss_BT.tolist(), [[-2.0, 0.0625]])
    assert logprobs_BT.grad is not None
    np.testing.assert_allclose(logprobs_BT.grad.tolist(), [[-2.0, -0.25]])


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """What `make prepare` makes, as far as a dry run looks at it."""
    write_model(tmp_path / "work" / "model")
    (tmp_path / "work" / "data").mkdir()
    for name in ("sft", "train", "test"):
        write_rows(tmp_path / "work" / "data" / f"{name}.jsonl", *[ROW] * 128)
    return tmp_path / "work"


def dry_run(work: Path, config: Path, *options: str) -> str:
    environment = {**os.environ, "TRINITY_ADDITION_WORK": str(work)}
    environment["TRINITY_CHECKPOINT_ROOT_DIR"] = str(work / "checkpoints")
    program = (
        "import sys; from trinity.cli.main import app; app(standalone_mode=False); "
        "print([m for m in ('torch', 'verl', 'transformers') if m in sys.modules])"
    )
    arguments = ["run", "--dry-run", "--config", str(config), *options]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_dry_run_finds_everything_and_brings_no_torch(work: Path) -> None:
    said = dry_run(work, EXAMPLE / "custom_algorithm.yaml")
    path = "examples.custom_algorithm.hard_tasks"
    assert f"advantage {path}.hard_tasks (of the buffer), loss {path}.held_close" in said
    assert said.splitlines()[-1] == "[]"


def test_from_a_plugin_folder_it_goes_by_name(work: Path, tmp_path: Path) -> None:
    named = tmp_path / "named.yaml"
    text = (EXAMPLE / "custom_algorithm.yaml").read_text()
    named.write_text(text.replace("examples.custom_algorithm.hard_tasks.", ""))
    said = dry_run(work, named, "--plugin-dir", str(EXAMPLE))
    assert "advantage hard_tasks (of the buffer), loss held_close" in said


def test_its_arguments_reach_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plan = plan_experiment(load_config(EXAMPLE / "custom_algorithm.yaml"))
    algorithm = plan.stages[1].algorithm
    assert algorithm.advantage_fn_args == {"focus": 0.5}
    assert algorithm.policy_loss_fn_args == {"pull": 0.5}
