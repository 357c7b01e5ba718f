"""Keys, commands, snippets and paths of Trinity-RFT's guides act here, or stand in one table."""

import importlib
import re
from pathlib import Path

import pytest
import yaml
from pydantic import JsonValue
from typer.testing import CliRunner

from tests.unit.config.guide_meanings import BASES, KeyMeaning, meanings
from tests.unit.subtests import as_subtests
from trinity.cli.config_commands import explain_key
from trinity.cli.main import make_app
from trinity.config.check import CheckReport, check_file
from trinity.config.docs.explain import find_keys
from trinity.config.schema.base import KeyStatus
from trinity.errors import UserError

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs/moving-in.md").read_text().partition("## What the guides tell people")[2]
COMMANDS = {
    "trinity studio --port 8080": ("studio",),
    "trinity run --config grpo_gsm8k/gsm8k.yaml": ("run",),
    "trinity debug --config c --module inference_model": ("debug",),
    "trinity debug --config c --module workflow --output-file o --plugin-dir p": ("debug",),
    "trinity debug --config c --module viewer --port 8502": ("debug",),
}
IMPORTS = {
    "trinity.common.schema.sql_schema": "ExperienceModel",
    "trinity.common.models.utils": "load_fsdp_state_dict_from_verl_checkpoint",
    "trinity.manager.config_registry.config_registry": "CONFIG_GENERATORS",
}
WALKED = "tests/e2e/test_guides_walked.py"
TYPED = {
    "trinity studio": f"{WALKED}::look_at_studio",
    "trinity run": f"{WALKED}::test_the_faq_is_walked_from_top_to_bottom",
    "trinity debug, both modules": f"{WALKED}::look_at_debug",
    "explorer.log, trainer.log, explorer_runner_<n>.log": f"{WALKED}::look_at_logs",
    "log.level=debug": f"{WALKED}::look_at_logs",
    "remedies for out-of-memory": f"{WALKED}::goes_on_with_remedies",
    "experiences by SQLAlchemy": f"{WALKED}::COUNT_EXPERIENCES",
    "global_step_<n>/actor": f"{WALKED}::LOAD_CHECKPOINT",
    "monitor/tensorboard": f"{WALKED}::test_the_faq_is_walked_from_top_to_bottom",
    "log/<node_ip>": "tests/unit/local/test_log_folders.py::",
    "the first file of the guide": "tests/unit/config/test_guide_files.py::GUIDE",
    "the first file, section by section": "tests/unit/config/guide/everything.yaml::stage_name",
    "the file of the PPO example": "tests/unit/config/guide/ppo.yaml::algorithm_type: ppo",
    "the file of the GRPO example": "tests/unit/config/guide/grpo.yaml::algorithm_type: grpo",
    "the section of veRL": "tests/unit/config/guide/verl.yaml::actor_rollout_ref",
    "both scripts of veRL": "tests/unit/verl/test_guide_scripts.py::",
    "the tables of veRL's keys": "tests/unit/verl/test_guide_table.py::",
    "set_train_batch_size, check_train_batch_size": "tests/unit/studio/test_generator.py"
    "::test_the_guides_example_works_as_it_is_written",
}
"""Each command of the guides, with the test that runs it: a file, and words in it."""
IN_TABLE = (
    "ray stop",
    "ray start --head",
    "pip install flash-attn==2.8.1",
    "export WANDB_API_KEY=...",
    "RAY_DEDUP_LOGS=0",
    "huggingface-cli download",
    "python3 -m verl.trainer.main_ppo",
    "def update_policy",
    "trinity/trainer/verl/dp_actor.py",
    "trinity/common/verl_config.py",
    "rubric_judge_workflow.py",
    "examples/grpo_rubric_as_reward",
    "grpo_gsm8k/gsm8k.yaml",
    "examples/grpo_gsm8k_experience_pipeline/dj_scoring_exp.yaml",
    "timeline.json",
    "chrome://tracing",
    "set_train_batch_size",
    "buffer_config_manager.py",
    "explorer_config_manager.py",
    "model_config_manager.py",
    "trainer_config_manager.py",
    "config_manager.py",
    "_gen_buffer_config",
    "eval_taskset",
    "prompt_type: `plaintext`",
    "stage_name",
    "taskset.repeat_times",
    "trainer.trainer_config",
)
"""What differs, as the table names it."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The files that keys are added to."""
    folder = tmp_path_factory.mktemp("guide")
    for name, tree in BASES.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(tree)))
    return {name: folder / f"{name}.yaml" for name in BASES}


@as_subtests("meaning", [*meanings()])
def test_a_key_of_the_guides_acts_as_they_say_or_stands_in_the_table(
    meaning: KeyMeaning, plain: dict[str, Path]
) -> None:
    report = check_file(plain[meaning.base], {meaning.key: meaning.value})
    assert report.reading is not None
    if meaning.place is None:
        assert not written(report, meaning), "it acts"
        assert [notice.key for notice in report.notices] != []
        assert is_in_table(meaning.key)
        return
    assert all(error.startswith("unknown key") is False for error in report.reading.errors)
    assert written(report, meaning)
    renamed = [notice for notice in report.notices if notice.status is KeyStatus.RENAMED]
    assert len(renamed) == len(report.notices), "it is told that it does not act"


def written(report: CheckReport, meaning: KeyMeaning) -> bool:
    """True if the configuration has the value at its place; sections may have more than it."""
    assert report.reading is not None and report.reading.config is not None
    value: JsonValue = report.reading.config.model_dump(mode="json")
    for part in (meaning.place or meaning.key).split("."):
        if not isinstance(value, dict) or part not in value:
            return False
        value = value[part]
    return has(value, meaning.value)


def has(found: JsonValue, wanted: JsonValue) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(name in found and has(found[name], value) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(has, found, wanted))
    return found == wanted


def is_in_table(key: str) -> bool:
    """True if the table names a key, the end of it, or the section that it is in."""
    parts = key.split(".")
    ends = {".".join(parts[first:]) for first in range(len(parts))}
    above = {f"{end}.*" for end in (".".join(parts[:last]) for last in range(1, len(parts)))}
    sections = {name for end in above for name in endings(end)}
    return any(f"`{name}`" in TABLE for name in ends | sections)


def endings(key: str) -> set[str]:
    parts = key.split(".")
    return {".".join(parts[first:]) for first in range(len(parts) - 1)}


def test_a_key_that_the_table_does_not_name_would_be_noticed() -> None:
    assert is_in_table("trainer.save_strategy")
    assert not is_in_table("trainer.save_interval")
    assert not is_in_table("trainer.trainer_config.actor_rollout_ref.actor.grad_clip")


@as_subtests("key", sorted({meaning.key for meaning in meanings()}))
def test_a_key_of_the_guides_is_explained(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    explain_key(key)
    assert len(capsys.readouterr().out.splitlines()) > 1


@pytest.mark.parametrize("above", ["", "trainer.trainer_config."])
def test_a_section_of_verl_is_explained_as_one(
    above: str, capsys: pytest.CaptureFixture[str]
) -> None:
    explain_key(f"{above}actor_rollout_ref")
    assert "a section of veRL below `trainer.trainer_config`" in capsys.readouterr().out


def test_an_unknown_key_would_be_noticed() -> None:
    with pytest.raises(UserError):
        find_keys("buffer.trainer_input.experience_buffer.max_read_time")
    with pytest.raises(UserError):
        explain_key("trainer.trainer_config.actor_rollout_ref.actor.no_such_key")


@pytest.mark.parametrize("section", ["actor_rollout_ref", "critic"])
def test_a_section_of_verl_at_the_top_is_sent_to_its_place(
    section: str, plain: dict[str, Path]
) -> None:
    report = check_file(plain["grpo"], {f"{section}.optim": {"lr": 1e-5}})
    assert "belongs below `trainer.trainer_config`" in "".join(report.errors)


@as_subtests("words", IN_TABLE)
def test_what_differs_stands_in_the_table(words: str) -> None:
    assert re.search(rf"(?<![\w/]){re.escape(words)}(?!\w)", TABLE), words


@as_subtests("what", TYPED)
def test_what_the_guides_type_is_typed_by_a_test(what: str) -> None:
    file, _, words = TYPED[what].partition("::")
    assert words in (ROOT / file).read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guides_is_there_with_its_options(command: str) -> None:
    words = COMMANDS[command]
    app = make_app(words)
    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"])
    assert told.exit_code == 0
    options = [word for word in command.split() if word.startswith("--")]
    assert all(option in told.stdout for option in options)


@pytest.mark.parametrize("module", IMPORTS)
def test_an_import_of_the_guides_is_there(module: str) -> None:
    assert hasattr(importlib.import_module(module), IMPORTS[module])
