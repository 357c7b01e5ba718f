"""Every example passes its check and the checks of a start, with its data and a small model."""

import json
import os
import shutil
from pathlib import Path

import pytest

from examples.addition.prepare import prepare
from examples.frozen_lake.prepare import write
from examples.squares.prepare import prepare as prepare_squares
from tests.e2e.conftest import REPOSITORY
from tests.support.forking.starts import run_module

EXAMPLES = sorted(
    str(file.relative_to(REPOSITORY)) for file in REPOSITORY.glob("examples/*/*.yaml")
)


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns what the examples read from the environment, with data of a few rows."""
    work = tmp_path_factory.mktemp("examples")
    prepare(work / "addition", seed=42)
    prepare_squares(work / "squares", seed=42, shuffled=False)
    for split in ("train", "test"):
        row = {"question": "What is 1 + 1?", "answer": "One more.\n#### 2"}
        (work / f"{split}.jsonl").write_text(f"{json.dumps(row)}\n" * 512)
        (work / "lakes").mkdir(exist_ok=True)
        write(work / f"lakes/{split}.jsonl", range(512))
    model = str(_with_more_positions(work / "addition/model", work / "model"))
    return {
        "TRINITY_ADDITION_WORK": str(work / "addition"),
        "TRINITY_CHECKPOINT_ROOT_DIR": str(work / "runs"),
        "TRINITY_FROZEN_LAKE_WORK": str(work / "lakes"),
        "TRINITY_GPUS": "0",
        "TRINITY_JUDGE_PATH": model,
        "TRINITY_MODEL_PATH": model,
        "TRINITY_SQUARES_WORK": str(work / "squares"),
        "TRINITY_TASKSET_PATH": str(work),
    }


def _with_more_positions(model: Path, copy: Path) -> Path:
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return copy


@pytest.mark.parametrize("file", EXAMPLES)
def test_an_example_is_in_order(file: str, variables: dict[str, str]) -> None:
    for command in (("config", "check"), ("run", "--dry-run")):
        done = run_module(
            "trinity.cli.main", *command, file, cwd=REPOSITORY, env=os.environ | variables
        )
        assert done.returncode == 0, done.stdout + done.stderr
