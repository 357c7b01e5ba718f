"""A configuration file is a word or `--config FILE`, for every command that takes one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
import yaml

from tests.unit.config.builders import GRPO
from trinity.cli.main import make_app
from trinity.cli.overrides import split_words
from trinity.config.check import check_file
from trinity.errors import UserError
from trinity.run.launch.resume import store_plan
from trinity.run.runs import place_of

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def trinity(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; returns its exit code and what it printed."""

    def call(*words: str) -> tuple[int, str]:
        command = typer.main.get_command(make_app(words))
        code = command(list(words), standalone_mode=False)
        return code or 0, capsys.readouterr().out

    return call


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(GRPO))
    return path


@pytest.fixture
def run_directory(tmp_path: Path, file: Path) -> Path:
    """The directory of a run that has stopped."""
    plan = check_file(file).plan
    assert plan is not None
    directory = tmp_path / "run"
    directory.mkdir()
    store_plan(plan.model_copy(update={"job_dir": str(directory)}))
    return directory


@pytest.mark.parametrize(
    "command", [("config", "check"), ("config", "show", "--origin"), ("config", "plan")]
)
def test_a_file_is_a_word_or_an_option(
    trinity: Command, file: Path, command: tuple[str, ...]
) -> None:
    as_word = trinity(*command, str(file), "buffer.batch_size=7")
    assert as_word == trinity(*command, "--config", str(file), "buffer.batch_size=7")
    assert as_word == trinity(*command, "buffer.batch_size=7", "-c", str(file))
    assert as_word[1]
    try:
        code, _ = trinity(*command, str(file), "buffer.batch_size=two")
    except UserError:
        code = 2
    assert code == 2, "an override does act"


def test_several_files_are_checked_in_both_ways(
    trinity: Command, file: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(GRPO))
    as_words = trinity("config", "check", str(file), str(other))
    assert as_words == trinity("config", "check", "-c", str(file), "--config", str(other))
    assert as_words == trinity("config", "check", "--config", str(file), str(other))


def test_two_files_are_compared_in_both_ways(trinity: Command, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(GRPO))
    words = (str(file), str(other))
    code, text = trinity("config", "diff", *words, "buffer.batch_size=7")
    assert code == 1 and "buffer.batch_size" in text
    options = ("-c", words[0], "-c", words[1])
    assert trinity("config", "diff", *options, "buffer.batch_size=7") == (code, text)
    with pytest.raises(UserError, match=r"compares two, and 1 are named"):
        trinity("config", "diff", words[0])


def test_a_script_of_verl_is_a_word_or_an_option(trinity: Command, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=/m\n")
    as_word = trinity("config", "from-verl", str(script), "data.seed=7")
    assert as_word[1] and as_word == trinity(
        "config", "from-verl", "--config", str(script), "data.seed=7"
    )


def test_a_stopped_run_is_named_by_its_directory_or_an_option(
    trinity: Command, run_directory: Path
) -> None:
    as_word = trinity("status", str(run_directory))
    assert "stopped" in as_word[1]
    assert as_word == trinity("status", "--job-dir", str(run_directory))


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--dry-run"),
        ("config", "show"),
        ("config", "plan"),
        ("deploy", "render"),
        ("debug", "--module", "workflow"),
        ("retrain", "--steps", "1..2"),
    ],
)
def test_a_command_without_a_file_says_how_it_is_given(
    trinity: Command, command: tuple[str, ...]
) -> None:
    with pytest.raises(UserError, match=r"no file is named: write `trinity .* FILE`"):
        trinity(*command)


def test_words_beside_an_option_are_overrides_and_no_second_file() -> None:
    here = Path("a.yaml")
    assert split_words(["x=1"], here, "trinity run") == (here, ["x=1"])
    assert split_words(["x=1", "a.yaml", "y=b/c.yaml"], None, "trinity run") == (
        here,
        ["x=1", "y=b/c.yaml"],
    )
    assert split_words(["./x=1/a.yaml"], None, "trinity run") == (Path("./x=1/a.yaml"), [])
    for words, config in ((["a.yaml", "b.yaml"], None), (["b.yaml"], here)):
        with pytest.raises(UserError, match=r"takes one file, and a.yaml and b.yaml are given"):
            split_words(words, config, "trinity run")


def test_a_run_has_one_name(tmp_path: Path) -> None:
    config = tmp_path / "a.yaml"
    assert place_of(tmp_path, None, None) == (None, tmp_path)
    assert place_of(config, None, None) == (config, None)
    assert place_of(None, config, tmp_path) == (config, tmp_path)
    with pytest.raises(UserError, match="both name a run"):
        place_of(config, config, None)
