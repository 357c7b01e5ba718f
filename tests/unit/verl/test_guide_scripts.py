"""The guide's two scripts become the guide's two files."""

from pathlib import Path

import pytest
import yaml

from tests.unit.verl.builders import converted, flat
from tests.unit.verl.guide import GRPO_SCRIPT, GRPO_VALUES, PPO_SCRIPT, PPO_VALUES, SAID_BESIDES
from trinity.verl.values import JsonValue


@pytest.mark.parametrize(
    ("script", "expected"), [(PPO_SCRIPT, PPO_VALUES), (GRPO_SCRIPT, GRPO_VALUES)]
)
def test_the_scripts_of_the_guide_become_its_files(
    script: str, expected: dict[str, JsonValue], tmp_path: Path
) -> None:
    found = flat(converted(script, tmp_path).values)
    besides = {key for key in found if any(key.endswith(one) for one in SAID_BESIDES)}
    unsaid = besides - expected.keys()
    assert {key: value for key, value in found.items() if key not in unsaid} == expected


@pytest.mark.parametrize("script", [PPO_SCRIPT, GRPO_SCRIPT])
def test_the_text_holds_the_values(script: str, tmp_path: Path) -> None:
    result = converted(script, tmp_path)
    loaded = flat(yaml.safe_load(result.yaml))
    assert loaded == flat(result.values)


def test_each_line_says_where_it_came_from(tmp_path: Path) -> None:
    lines = converted(GRPO_SCRIPT, tmp_path).yaml.splitlines()
    (rate,) = [line for line in lines if line.strip().startswith("lr:")]
    assert rate.endswith("# run.sh:11 actor_rollout_ref.actor.optim.lr")
    (interval,) = [line for line in lines if "sync_interval:" in line]
    assert "1024 / 256" in interval


def test_the_number_of_engines_and_the_offset_may_be_chosen(tmp_path: Path) -> None:
    found = flat(converted(PPO_SCRIPT, tmp_path, engine_num=4, sync_offset=0).values)
    assert found["explorer.rollout_model.engine_num"] == 4
    assert found["synchronizer.sync_offset"] == 0


def test_what_stands_on_the_command_line_goes_over_the_script(tmp_path: Path) -> None:
    result = converted(GRPO_SCRIPT, tmp_path, more=["data.train_batch_size=512"])
    assert flat(result.values)["synchronizer.sync_interval"] == 2
    assert any("data.train_batch_size replaces the 1024" in line for line in result.report)
