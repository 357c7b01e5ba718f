"""Checkpoints are evaluated anew, in a directory of their own, where they are on other tasks."""

import json
from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.cli.experiment import stage_lines
from trinity.config.plan.placement import assign_gpus, cluster_gpus_of, gpu_demand_of
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.launch.machine import share_gpus
from trinity.run.launch.modes import bench_plan, is_bench_of_model, model_bench_plan
from trinity.run.launch.resume import check_resumable, store_plan

CHECKPOINT = "stages/rft/checkpoints/step-8-1"


def bench_on(root: Path, *tasksets: str, max_retry_times: int = 2, gpus: int = 0) -> ExperimentPlan:
    evaluated = [{"name": name, "path": str(root / "tasks.jsonl")} for name in tasksets]
    return plan_experiment(
        config(
            checkpoint_root_dir=str(root),
            stages=[{"stage_name": "rft", "mode": "bench"}],
            buffer={"explorer_input": {"eval_tasksets": evaluated}},
            explorer={"max_retry_times": max_retry_times, "rollout_model": {"engine_num": 1}},
            cluster={"gpu_per_node": gpus},
        )
    )


def started(plan: ExperimentPlan) -> ExperimentPlan:
    made = bench_plan(plan)
    made.job_path.mkdir(parents=True, exist_ok=True)
    check_resumable(made)
    store_plan(made)
    return made


def test_other_tasks_make_another_evaluation_of_the_same_checkpoint(tmp_path: Path) -> None:
    run = bench_on(tmp_path, "sums")
    (run.job_path / CHECKPOINT).mkdir(parents=True)
    store_plan(run)
    first, second = started(run), started(bench_on(tmp_path, "sums", "products"))
    assert first.job_dir != second.job_dir
    assert first.label != second.label


def test_what_changes_no_answer_goes_on_with_the_evaluation(tmp_path: Path) -> None:
    run = bench_on(tmp_path, "sums")
    (run.job_path / CHECKPOINT).mkdir(parents=True)
    store_plan(run)
    assert started(run).job_dir == started(bench_on(tmp_path, "sums", max_retry_times=5)).job_dir


def test_a_model_that_no_run_has_trained_is_evaluated_as_it_is(tmp_path: Path) -> None:
    plan = bench_on(tmp_path, "sums", gpus=1)
    assert is_bench_of_model(plan)
    [stage] = model_bench_plan(plan).stages
    assert (stage.roles, stage.trainer_rank_num) == (("explorer",), 0)
    assert "  evaluates      the model as it is; nothing is trained" in stage_lines(stage)
    other = model_bench_plan(bench_on(tmp_path, "sums", "products", gpus=1))
    assert len({plan.job_dir, model_bench_plan(plan).job_dir, other.job_dir}) == 3
    store_plan_in(plan)
    assert not is_bench_of_model(plan), "a run with checkpoints is there"


def store_plan_in(plan: ExperimentPlan) -> None:
    plan.job_path.mkdir(parents=True, exist_ok=True)
    store_plan(plan)


def test_a_model_needs_tasks_to_be_evaluated_on(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`mode: bench` evaluates the model on them"):
        model_bench_plan(bench_on(tmp_path))


def test_a_bench_needs_no_gpu_to_train_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plan = bench_on(tmp_path, "sums", gpus=1)
    [stage] = plan.stages
    seats = assign_gpus(cluster_gpus_of(stage), gpu_demand_of(stage))
    assert {seat.name: seat.gpus for seat in seats} == {"rollout engine 0": ("0:0",), "rank 0": ()}
    assert plan.num_rank_gpus == 0
    assert share_gpus(plan)["trainer"] == {"CUDA_VISIBLE_DEVICES": ""}
    assert bench_on(tmp_path, "sums", gpus=2).num_rank_gpus == 1, "one is left for it"


def test_checkpoints_are_read_by_as_many_ranks_as_wrote_them(tmp_path: Path) -> None:
    run = bench_on(tmp_path, "sums", gpus=2)
    (run.job_path / CHECKPOINT).mkdir(parents=True)
    (run.job_path / CHECKPOINT / "manifest.json").write_text(json.dumps({"num_ranks": 4}))
    store_plan(run)
    [stage] = bench_plan(run).stages
    assert (stage.trainer_rank_num, stage.num_rank_gpus) == (4, 0)
    assert share_gpus(bench_plan(run))["trainer"] == {"CUDA_VISIBLE_DEVICES": ""}
