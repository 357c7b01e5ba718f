"""What a former run left is needed until a checkpoint takes its place, below an adapter longer."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.trainer.builders import make_plan
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.plan.start_checkpoint import StartCheckpoint
from trinity.errors import UserError

LORA = {"lora_configs": [{"lora_rank": 4}]}


@pytest.fixture(autouse=True)
def model(tmp_path: Path) -> Path:
    """A model's directory, as far as names go."""
    return model_in(tmp_path / "model")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """What another run published of it."""
    return model_in(tmp_path / "v7-1")


def model_in(directory: Path) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    (directory / "model.safetensors").touch()
    return directory


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A checkpoint of one rank."""
    directory = tmp_path / "step-3-1"
    directory.mkdir()
    (directory / "model_world_size_1_rank_0.pt").touch()
    return directory


def plan_from(start: Path, model_section: Mapping[str, object] | None = None) -> StagePlan:
    grpo = {"algorithm_type": "grpo", "repeat_times": 8}
    plan = make_plan(start.parent / "model", grpo, None, model_section)
    return plan.model_copy(update={"start_checkpoint": str(start)})


def former(plan: StagePlan, *, has_checkpoint: bool) -> StartCheckpoint | None:
    from services.trainer.collectives import Ranks
    from services.trainer.rank.stage import resume_source

    return resume_source(plan, has_checkpoint=has_checkpoint, ranks=Ranks(0, 1))


def test_a_stage_begins_with_what_the_former_run_left(weights: Path, parts: Path) -> None:
    for start in (weights, parts):
        found = former(plan_from(start), has_checkpoint=False)
        assert found is not None
        assert found.policy == start


def test_a_checkpoint_of_all_weights_takes_its_place(weights: Path, parts: Path) -> None:
    for start in (weights, parts):
        assert former(plan_from(start), has_checkpoint=True) is None


def test_whole_weights_stay_below_an_adapter(weights: Path) -> None:
    found = former(plan_from(weights, LORA), has_checkpoint=True)
    assert found is not None
    assert found.policy == weights


def test_a_former_adapter_is_in_the_checkpoint(parts: Path) -> None:
    assert former(plan_from(parts, LORA), has_checkpoint=True) is None


def test_what_is_no_longer_needed_may_be_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert former(plan_from(gone), has_checkpoint=True) is None
    assert former(plan_from(gone, LORA), has_checkpoint=True) is None
    with pytest.raises(UserError, match="is not a directory"):
        former(plan_from(gone), has_checkpoint=False)
