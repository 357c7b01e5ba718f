"""A disk without room is told before anything starts."""

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, stage
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.launch import machine
from trinity.run.launch.machine import INFRASTRUCTURE_BYTES, check_disk

MIB = 2**20
SHAPE = {
    "model_type": "qwen2",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 400_000,
    "tie_word_embeddings": True,
}
"""About 26 million parameters, so some 345 MiB for a checkpoint and the weights."""


@pytest.fixture
def plan(tmp_path: Path) -> ExperimentPlan:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(SHAPE))
    one = stage(GRPO, model={"model_path": str(model)})
    return ExperimentPlan.model_construct(
        label="p/n", job_dir=str(tmp_path / "runs/p/n"), stages=(one,), tenant="default"
    )


def free_is(monkeypatch: pytest.MonkeyPatch, mebibytes: int) -> None:
    usage = type(shutil.disk_usage("/"))(2**40, 0, mebibytes * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


@pytest.mark.parametrize(("free", "is_enough"), [(1500, True), (1000, True), (900, False)])
def test_the_first_checkpoint_and_the_infrastructure_must_fit(
    plan: ExperimentPlan, monkeypatch: pytest.MonkeyPatch, free: int, is_enough: bool
) -> None:
    free_is(monkeypatch, free)
    if is_enough:
        check_disk(plan)
        return
    with pytest.raises(UserError, match="checkpoint_root_dir") as told:
        check_disk(plan)
    assert f"has {free} MiB free" in str(told.value) and plan.job_dir in str(told.value)


def test_what_an_earlier_start_has_written_is_not_needed_again(
    plan: ExperimentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = plan.job_path / "infra" / "postgres"
    data.mkdir(parents=True)
    (data / "block").write_bytes(b"x" * (2 * MIB))
    monkeypatch.setattr(machine, "INFRASTRUCTURE_BYTES", 3 * MIB)
    free_is(monkeypatch, 350)
    check_disk(plan)
    shutil.rmtree(plan.job_path / "infra")
    monkeypatch.setattr(machine, "INFRASTRUCTURE_BYTES", 300 * MIB)
    with pytest.raises(UserError):
        check_disk(plan)


def test_a_model_that_is_not_here_yet_is_not_counted(
    plan: ExperimentPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    [one] = plan.stages
    fetched = plan.model_copy(update={"stages": (one.model_copy(update={"model_path": "o/m"}),)})
    free_is(monkeypatch, INFRASTRUCTURE_BYTES // MIB)
    check_disk(fetched)
