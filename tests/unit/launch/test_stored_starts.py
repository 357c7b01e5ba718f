"""What an experiment beside a run begins with: the weights that the run's stage began with."""

from pathlib import Path

import pytest

from tests.unit.config.builders import IMITATION, REINFORCEMENT, SAFETENSORS, config
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.config.plan.parts import EvaluatedRun
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.stored_rollouts import UNKNOWN
from trinity.config.planning import plan_experiment
from trinity.errors import RunFailed
from trinity.run.launch.modes import BenchSource
from trinity.run.launch.resume import store_plan
from trinity.run.launch.retrain import RetrainSource, RetrainSteps, retraining_plan
from trinity.run.launch.stored_runs import StoredRun


def adapted(tmp_path: Path) -> ExperimentPlan:
    """Imitation, then reinforcement, both beginning with an adapter of the user's."""
    adapter = tmp_path / "adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 16, "lora_alpha": 16}')
    (adapter / "adapter_model.safetensors").write_bytes(SAFETENSORS)
    plan = plan_experiment(
        config(
            checkpoint_root_dir=str(tmp_path),
            model={"lora_configs": [{"name": "mine", "path": str(adapter), "lora_rank": 16}]},
            stages=[IMITATION, REINFORCEMENT],
        )
    )
    assert [stage.adapter_path for stage in plan.stages] == [str(adapter)] * 2
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)
    return plan


class Synchronizer:
    """Answers with one experiment, whose first stage has ended."""

    def __init__(self, plan: ExperimentPlan, merged: Path) -> None:
        ended = pb.Stage(name="sft", final_version=pb.Version(path=str(merged)))
        stages = [ended, pb.Stage(name="rft")]
        self._one = pb.Experiment(id="one", tenant=plan.tenant, label=plan.label, stages=stages)

    async def GetStatus(self, request: pb.GetStatusRequest, **_: object) -> pb.GetStatusResponse:
        assert request.label == self._one.label
        return pb.GetStatusResponse(experiments=[self._one])


async def retrained(tmp_path: Path, stage: str) -> StagePlan:
    plan = adapted(tmp_path)
    steps = RetrainSteps(first=1, last=8)
    made = retraining_plan(plan, stage=stage, steps=steps, name=None)
    known = Synchronizer(plan, tmp_path / "merged")
    completed = await RetrainSource(plan=plan).complete_plan(known, made)  # type: ignore[arg-type]
    return completed.stages[0]


async def test_what_is_retrained_after_another_stage_begins_with_an_adapter_at_zero(
    tmp_path: Path,
) -> None:
    (tmp_path / "merged").mkdir()
    stage = await retrained(tmp_path, "rft")
    assert (stage.model_path, stage.adapter_path) == (str(tmp_path / "merged"), None)
    first = await retrained(tmp_path, "sft")
    assert (first.model_path, first.adapter_path) == ("/models/tiny", str(tmp_path / "adapter"))


async def test_so_does_what_is_benched(tmp_path: Path) -> None:
    (tmp_path / "merged").mkdir()
    plan = adapted(tmp_path)
    benched = [
        one.model_copy(update={"benched": EvaluatedRun(experiment_id=UNKNOWN, stage=one.name)})
        for one in plan.stages
    ]
    made = plan.model_copy(update={"stages": tuple(benched)})
    known = Synchronizer(plan, tmp_path / "merged")
    completed = await BenchSource(run=StoredRun(plan=plan)).complete_plan(known, made)  # type: ignore[arg-type]
    assert [one.adapter_path for one in completed.stages] == [str(tmp_path / "adapter"), None]
    assert {one.benched.experiment_id for one in completed.stages if one.benched} == {"one"}


async def test_weights_that_are_gone_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="stage rft started from the last weights of stage sft"):
        await retrained(tmp_path, "rft")
