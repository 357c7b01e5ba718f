"""`trinity config diff FILE RUN` says what becomes of the run before anything starts."""

from pathlib import Path

import pytest
import yaml

from tests.unit.config.builders import GRPO
from trinity.cli.config_commands import show_run_difference
from trinity.config.check import check_file
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError
from trinity.run.launch.resume import store_plan


def written(file: Path, **changes: object) -> Path:
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    return file


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The directory of a run that was started with a file."""
    plan = check_file(written(tmp_path / "started.yaml")).plan
    assert plan is not None
    directory = tmp_path / "run"
    directory.mkdir()
    store_plan(plan.model_copy(update={"job_dir": str(directory)}))
    return directory


def test_each_change_is_below_its_kind(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(
        tmp_path / "now.yaml",
        algorithm={"optimizer": {"lr": 0.5}},
        trainer={"save_interval": 9, "max_token_len_per_gpu": 64},
        buffer={"batch_size": 8},
    )
    assert show_run_difference(file, run, []) == 2
    said = capsys.readouterr().out
    free, _, rest = said.partition(
        "changes the experiment, `trinity run --accept-changes` goes on:"
    )
    experiment, _, impossible = rest.partition("impossible:")
    assert "trainer.save_interval: 0 -> 9" in free
    assert "trainer.max_token_len_per_gpu: 16384 -> 64" in free
    assert "the same bits are no longer promised" in free
    assert "algorithm.optimizer.lr: 1e-06 -> 0.5\n    the learning rate" in experiment
    assert "buffer.batch_size: 4 -> 8" in impossible
    assert "trainer.resume_mode: resume_path" in impossible


def test_exit_codes(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = tmp_path / "started.yaml"
    assert show_run_difference(same, run, []) == 0
    assert capsys.readouterr().out == ""
    assert show_run_difference(same, run, ["trainer.save_interval=9"]) == 1
    assert show_run_difference(same, run, ["buffer.batch_size=8"]) == 2
    with pytest.raises(UserError, match="holds no run"):
        show_run_difference(same, tmp_path, [])
