"""The stack without a model behaves as the one with a model does."""

import hashlib
from pathlib import Path

from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from tests.support.model_free.stack import model_free_services
from trinity.launch.run import LocalRun
from trinity.progress.reporter import make_reporter
from trinity.weights.manifest import MANIFEST_NAME, Manifest, verify

pytestmark = ON_IT


async def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    plans = [experiment_plan(tmp_path, name=f"seed-{seed}", seed=seed) for seed in (7, 8)]
    again, other = [weights_of(await run_to_end(shared_stack.synchronizer, plan)) for plan in plans]
    assert again == calm_weights
    assert other != calm_weights


async def test_the_best_version_of_a_run_is_there_at_its_end(tmp_path: Path) -> None:
    plan = experiment_plan(
        tmp_path,
        name="best",
        buffer={
            "total_steps": 6,
            "explorer_input": {
                "eval_tasksets": [{"name": "held_out", "path": str(tmp_path / "best.jsonl")}]
            },
        },
        explorer={"eval_on_startup": True, "eval_interval": 1},
        monitor={"monitor_type": "none"},
    )
    run = LocalRun(plan=plan, reporter=make_reporter(plan.label), services=model_free_services())
    summary = await run.run_to_end()
    [stage] = summary.stages
    assert sorted(done.version for done in stage.evaluations) == list(range(7))
    folder = plan.job_path / "stages" / "rft" / "best"
    assert summary.best_evaluation is not None
    manifest = Manifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    assert manifest.step == summary.best_evaluation.version
    verify(folder, hashlib.sha256((folder / MANIFEST_NAME).read_bytes()).digest())
