"""Options act, or are refused in a sentence; a command that plans a file takes its plug-ins."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml
from typer.core import TyperGroup
from typer.testing import CliRunner

from tests.unit.config.builders import GRPO
from trinity.cli import studio
from trinity.cli.main import COMMANDS, GROUPS, IN_GROUPS, make_app
from trinity.cli.overrides import refuse_ignored
from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError
from trinity.run.runs import find_job_dir

OWN_ADVANTAGE = """
from trinity.algorithm.advantage.samples import Advantages, Samples


def rewards(samples: Samples) -> Advantages:
    return Advantages(samples.rewards)
"""
IGNORED = {
    "view --population --sort reward --job-dir .": "--sort has no effect beside --population",
    "view --population --json --limit 3 --job-dir .": "--limit and --json have no effect",
    "view --population --oldest --job-dir .": "--oldest has no effect",
    "view 2df7bea2 --sort reward --lowest --job-dir .": "--sort and --lowest have no effect",
    "view --lowest --job-dir .": "add `--sort reward`",
    "debug FILE --module viewer --output-dir o": "--output-dir has no effect beside --module view",
    "debug FILE --module viewer --stage s": "--stage has no effect beside --module viewer",
    "debug FILE --module inference_model --first-row 0": "--first-row has no effect",
    "debug FILE --module inference_model --port 1": "--port has no effect",
    "debug FILE --module workflow --port 0": "--port has no effect beside --module workflow",
    "debug FILE --module workflow --output-dir a --output-file b": "--output-file has no effect",
    "config from-verl --to-verl FILE --line 2": "--line has no effect beside --to-verl",
    "config from-verl FILE --force": "add `--output`",
    "certs FOLDER --role operator": "name it with --name",
    "certs FOLDER --name ann --host buffer=b": "PART is one of ann",
    "taskset list --buffer 127.0.0.1:1 --job-dir .": "--job-dir has no effect beside --buffer",
    "status --config FILE --job-dir .": "both name a run",
    "view --config FILE --job-dir .": "both name a run",
}
FINDS_A_RUN = "The run's YAML file."
WITHOUT_PLUGINS = {"config from-verl"}
"""Commands that read files of veRL."""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file whose advantage is in a folder beside it."""
    module = f"own_{tmp_path.name}"  # a process imports a name once
    (tmp_path / "plugins").mkdir()
    (tmp_path / f"plugins/{module}.py").write_text(OWN_ADVANTAGE)
    changes = {
        "algorithm": {"advantage_fn": f"{module}.rewards"},
        "checkpoint_root_dir": str(tmp_path),
    }
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    return file


@pytest.mark.parametrize("typed", IGNORED)
def test_an_option_that_would_be_ignored_is_refused(typed: str, own: Path) -> None:
    named = {"FILE": str(own), "FOLDER": str(own.parent / "new")}
    words = [named.get(word, word) for word in typed.split()]
    with pytest.raises(UserError) as refused:
        CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    assert IGNORED[typed] in str(refused.value)


def test_an_option_at_zero_is_given_and_one_that_is_off_is_not() -> None:
    refuse_ignored("x", {"--limit": None, "--json": False, "--stage": ""})
    with pytest.raises(UserError, match="--limit has no effect beside x"):
        refuse_ignored("x", {"--limit": 0})


def test_a_command_that_goes_back_to_verl_writes_where_it_is_told(own: Path) -> None:
    output = own.parent / "back.sh"
    words = ["config", "from-verl", "--to-verl", str(own), "-o", str(output)]
    assert CliRunner().invoke(make_app(words), words, catch_exceptions=False).exit_code == 0
    assert output.read_text().startswith("python3 -m verl.trainer.main_ppo")
    with pytest.raises(UserError, match="exists: give another name"):
        CliRunner().invoke(make_app(words), words, catch_exceptions=False)


def commands() -> Iterator[tuple[str, dict[str, str]]]:
    """Yields each command with its options and their help."""
    for name in (*COMMANDS, *GROUPS):
        yield from inner(name, below(typer.main.get_command(make_app([name])))[name])
    for group, names in IN_GROUPS.items():
        for name in names:
            group_command = below(typer.main.get_command(make_app([group, name])))[group]
            yield from inner(f"{group} {name}", below(group_command)[name])


def below(command: object) -> dict[str, object]:
    return dict(command.commands) if isinstance(command, TyperGroup) else {}


def inner(name: str, command: object) -> Iterator[tuple[str, dict[str, str]]]:
    if further := below(command):
        for word, found in further.items():
            yield from inner(f"{name} {word}", found)
        return
    params = vars(command)["params"]
    yield name, {option: vars(param).get("help", "") for param in params for option in param.opts}


def test_a_command_that_plans_a_file_takes_the_plug_ins_of_the_file() -> None:
    found = {name: options for name, options in commands() if "--config" in options}
    assert {"config plan", "retrain", "debug", "deploy render", "config check"} <= set(found)
    planning = {name for name, options in found.items() if options["--config"] != FINDS_A_RUN}
    without = {name for name in planning if "--plugin-dir" not in found[name]}
    assert without - WITHOUT_PLUGINS == set()


def test_a_file_is_planned_with_its_plug_ins(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", "")
    words = ["config", "plan", str(own)]
    with pytest.raises(UserError, match=r"own_.*\.rewards"):
        CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    words += ["--plugin-dir", str(own.parent / "plugins")]
    done = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_the_viewer_plans_a_file_with_its_plug_ins(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", "")
    opened: list[list[Path]] = []
    monkeypatch.setattr(studio, "studio", lambda places, _: opened.append(places))
    words = ["debug", str(own), "--module", "viewer", "--plugin-dir", str(own.parent / "plugins")]
    done = CliRunner().invoke(make_app(words), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert opened == [[own.parent / "demo"]]


def test_a_run_is_found_by_its_file_without_the_plug_ins_of_the_file(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", "")
    with pytest.raises(UserError, match=r"own_.*\.rewards"):
        plan_experiment(load_config(own))
    assert find_job_dir(own, None) == own.parent / "demo/sums"


def test_a_file_that_always_begins_anew_means_the_newest_of_its_runs(tmp_path: Path) -> None:
    changes = {"checkpoint_root_dir": str(tmp_path), "continue_from_checkpoint": False}
    file = tmp_path / "anew.yaml"
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    for hour, name in enumerate(("sums", "sums_20261126200000", "sums_20261126210000", "sums_x")):
        (tmp_path / "demo" / name).mkdir(parents=True)
        (tmp_path / "demo" / name / "config.json").write_text("{}")
        os.utime(tmp_path / "demo" / name / "config.json", (hour, hour))
    assert find_job_dir(file, None) == tmp_path / "demo/sums_20261126210000"


def test_a_file_that_serves_means_the_directory_beside_the_run(tmp_path: Path) -> None:
    changes = {"checkpoint_root_dir": str(tmp_path), "mode": "serve"}
    file = tmp_path / "serve.yaml"
    file.write_text(yaml.safe_dump(deep_merge(GRPO, changes)))
    assert find_job_dir(file, None) == tmp_path / "demo/sums-serve"
