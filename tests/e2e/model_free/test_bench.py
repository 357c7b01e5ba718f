"""Mode bench over real services: every checkpoint of a run is evaluated, and none of them twice."""

from pathlib import Path

import pytest
from pydantic import JsonValue

from tests.support.model_free.ended_run import EndedRun
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.launch.modes import BenchSource, bench_plan, model_bench_plan
from trinity.run.launch.run import LocalRun
from trinity.run.launch.stored_runs import StoredRun
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.summary import RunSummary

pytestmark = pytest.mark.timeout(600)

GRPO: JsonValue = {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"}


def plan_of(root: Path, *, only_newest: bool = False) -> ExperimentPlan:
    """Of a run's name, with a held-out taskset that its training did not look at."""
    return experiment_plan(
        root,
        stages=[{"stage_name": "rft", "mode": "bench", "algorithm": GRPO}],
        buffer={
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(root / "run.jsonl")}]
            }
        },
        explorer={"eval_on_startup": True, "bench_on_latest_checkpoint": only_newest},
        monitor={"monitor_type": "none"},
    )


async def benched(root: Path, *, only_newest: bool = False) -> RunSummary:
    """What `trinity run` does with `mode: bench`."""
    source = plan_of(root, only_newest=only_newest)
    made = bench_plan(source)
    run = LocalRun(
        plan=made,
        reporter=make_reporter(made.label),
        home=source.job_path,
        complete=BenchSource(run=StoredRun(plan=source)).complete_plan,
        services=model_free_services(),
    )
    return await run.run_to_end()


def evaluated(summary: RunSummary) -> list[int]:
    [stage] = summary.stages
    assert all(done.num_failed == 0 for done in stage.evaluations)
    return [done.version for done in stage.evaluations]


async def test_all_checkpoints_are_evaluated_and_none_of_them_twice(ended_run: EndedRun) -> None:
    newest = await benched(ended_run.root, only_newest=True)
    assert evaluated(newest) == [8]
    others = await benched(ended_run.root)
    assert sorted(evaluated(others)) == [0, 3, 6]
    assert (await benched(ended_run.root)).stages[0].steps == 0


def test_without_a_run_there_are_no_checkpoints_to_evaluate(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run whose checkpoints"):
        bench_plan(plan_of(tmp_path))


@pytest.mark.thorough
async def test_a_model_that_was_never_trained_is_evaluated_once(tmp_path: Path) -> None:
    made = model_bench_plan(plan_of(tmp_path))
    for _ in range(2):  # a second start has nothing left to do
        run = LocalRun(
            plan=made, reporter=make_reporter(made.label), services=model_free_services()
        )
        assert evaluated(await run.run_to_end()) == [0]
