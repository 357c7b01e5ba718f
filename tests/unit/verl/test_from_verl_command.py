"""`trinity config from-verl` as somebody types it."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.verl.guide import GRPO_SCRIPT
from trinity.cli.main import make_app
from trinity.errors import UserError


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "run.sh"
    path.write_text(GRPO_SCRIPT)
    return str(path)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(
        make_app(["config", "from-verl"]), ["config", "from-verl", *arguments]
    )
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def test_the_configuration_is_printed(script: str) -> None:
    assert run(script).startswith("project: verl_grpo_example_gsm8k")


def test_a_file_is_written_and_not_overwritten(script: str, tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    assert f"wrote {output}" in run(script, "-o", str(output))
    assert "sync_interval: 4" in output.read_text()
    with pytest.raises(UserError, match="--force"):
        run(script, "-o", str(output))
    run(script, "-o", str(output), "--force", "data.train_batch_size=256")
    assert "sync_interval: 1" in output.read_text()


def test_the_way_back(script: str, tmp_path: Path) -> None:
    output = tmp_path / "out.yaml"
    run(script, "-o", str(output))
    assert run("--to-verl", str(output)).startswith("python3 -m verl.trainer.main_ppo")


def test_variables_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo data.max_prompt_length=${N:-1}")
    assert "max_prompt_tokens: 9" in run(str(path), "--env", "N=9")
    with pytest.raises(UserError, match="has no value"):
        run(str(path), "--env", "N")


@pytest.mark.parametrize("arguments", [[], ["x.sh", "--to-verl", "x.yaml"]])
def test_one_of_the_two_directions_is_needed(arguments: list[str]) -> None:
    with pytest.raises(UserError, match="give either"):
        run(*arguments)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"there is no file nowhere\.sh"):
        run("nowhere.sh")


def test_no_heavy_library_is_loaded(script: str) -> None:
    code = (
        "import sys; from trinity.cli.config_from_verl import from_verl; "
        f"from_verl([{script!r}]); "
        "print([m for m in ('torch', 'numpy', 'transformers', 'grpc') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_script_with_several_starts_becomes_several_files(tmp_path: Path) -> None:
    path, output = tmp_path / "run.sh", tmp_path / "job.yaml"
    path.write_text(
        "for n in 1 2; do python3 -m verl.trainer.main_ppo data.max_prompt_length=$n; done"
    )
    assert "max_prompt_tokens: 1 " in run(str(path))
    run(str(path), "-o", str(output))
    found = [tmp_path / f"job_{number}.yaml" for number in (1, 2)]
    assert [f"max_prompt_tokens: {n} " in each.read_text() for n, each in enumerate(found, 1)] == [
        True,
        True,
    ]
    assert not output.exists()


def test_a_copy_and_a_version_exclude_each_other(script: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leave --verl-version out"):
        run(script, "--verl", str(tmp_path), "--verl-version", "0.2")
    with pytest.raises(UserError, match="holds no veRL"):
        run(script, "--verl", str(tmp_path))
