"""Checkpoints are evaluated anew, in a directory of their own, where they are on other tasks."""

from pathlib import Path

from tests.unit.config.builders import config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.launch.modes import bench_plan
from trinity.launch.resume import check_resumable, store_plan

CHECKPOINT = "stages/rft/checkpoints/step-8-1"


def bench_on(root: Path, *tasksets: str, max_retry_times: int = 2) -> ExperimentPlan:
    evaluated = [{"name": name, "path": str(root / "tasks.jsonl")} for name in tasksets]
    return plan_experiment(
        config(
            checkpoint_root_dir=str(root),
            stages=[{"stage_name": "rft", "mode": "bench"}],
            buffer={"explorer_input": {"eval_tasksets": evaluated}},
            explorer={"max_retry_times": max_retry_times},
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
