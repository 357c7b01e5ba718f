"""What stands still for a while is named, and the run goes on when it is over."""

from pathlib import Path

from tests.integration.stalls.faults import DIE, STRAGGLE, switch_on
from tests.integration.stalls.stalled import Stalled, stalled_stack
from tests.support.model_free.experiment import Sections, experiment_plan, start_experiment
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.diagnosis.rules import DiagnosisState

MAX_SECONDS = 8.0
"""Of an attempt."""


def endless_plan(root: Path) -> ExperimentPlan:
    """More steps than a test waits for."""
    changes: Sections = {
        "buffer": {
            "total_steps": 100_000,
            "explorer_input": {
                "default_workflow_type": "tests.integration.stalls.faults.Straggler"
            },
        },
        "explorer": {"max_timeout": MAX_SECONDS},
        "synchronizer": {"sync_timeout": 60.0},
    }
    return experiment_plan(root, **changes)


async def test_what_stands_still_takes_long_or_dies_is_named_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    plan = endless_plan(tmp_path)
    async with stalled_stack(plan.job_path) as run:
        await start_experiment(run.stack.addresses.synchronizer, plan)
        await run.until_steps(5)
        assert (await run.why()).state is DiagnosisState.WORKING
        assert await run.ask("why") == (0, "The run makes progress")
        for name, title in (
            ("explorer", "the explorer"),
            ("nats", "the broker"),
            ("synchronizer", "the synchronizer"),
            ("postgres", "Postgres"),
        ):
            await _stand_still(run, name, title)
        for seconds in (MAX_SECONDS - 0.5, 100 * MAX_SECONDS):
            await _straggle(run, seconds)
        await _kill_engine(run)


async def _stand_still(run: Stalled, name: str, title: str) -> None:
    with run.stopped(name) as pid:
        verdict = await run.until_named(title, f"process {pid} is stopped", f"{name}.log")
        assert verdict.state is DiagnosisState.BROKEN
        if name == "synchronizer":
            assert await run.ask("why") == (3, "The run waits for the synchronizer")
    await run.until_progress()
    assert (await run.why()).is_healthy


async def _straggle(run: Stalled, seconds: float) -> None:
    """A run just below the limit of time ends; one beyond it is made again."""
    switch_on(run.faults, STRAGGLE, str(seconds))
    named = await run.until_named("for a workflow of the explorer", "explorer.max_timeout")
    assert named.state is DiagnosisState.HELD
    await run.until_progress()


async def _kill_engine(run: Stalled) -> None:
    engine_of = run.stack.pids["explorer"]
    switch_on(run.faults, DIE)
    await run.until_named("the explorer", f"process {engine_of} is gone", "EngineDied")
    await run.until_progress()
    assert run.stack.pids["explorer"] != engine_of
