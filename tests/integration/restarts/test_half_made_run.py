"""A run that was killed during its first checkpoint goes on as if it had not been."""

import os
import signal
from pathlib import Path

from tests.integration.local.stacks import next_event, running_stack
from tests.integration.restarts import stopping_trainer
from tests.integration.restarts.stopping_rank import HALF
from tests.integration.together.seen import until
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end, start_experiment
from tests.support.model_free.learner import STATE_FILE
from tests.support.model_free.stack import MODULES, model_free_stack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.local.process_spec import EventKind
from trinity.run.local.run_file import read_running


async def test_a_run_killed_in_its_first_checkpoint_goes_on(
    tmp_path: Path, calm_weights: str
) -> None:
    plan = experiment_plan(tmp_path)
    stage = plan.job_path / "stages" / "rft"
    await kill_in_the_first_checkpoint(plan, stage / "checkpoints" / "step-3-1.tmp" / STATE_FILE)
    leave_more_behind(plan.job_path, stage / "weights")
    assert read_running(plan.job_path) is None
    async with model_free_stack(plan.job_path) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
        assert read_running(plan.job_path) is not None
    assert weights_of(ended) == calm_weights
    assert ended.start_count == 2
    assert {path.suffix for path in (stage / "weights").iterdir()} == {""}
    checkpoints = [path.name.split("-") for path in (stage / "checkpoints").iterdir()]
    assert sorted(step for _, step, _ in checkpoints) == ["3", "6", "8"]
    assert all(int(incarnation) > 1 for *_, incarnation in checkpoints)


async def kill_in_the_first_checkpoint(plan: ExperimentPlan, half_written: Path) -> None:
    """Every process at once, while the rank writes."""

    async def is_writing() -> bool:
        return is_half_written(half_written)

    trainer = {"trainer": stopping_trainer.__name__}
    async with model_free_stack(plan.job_path, modules=MODULES | trainer) as stack:
        await start_experiment(stack.addresses.synchronizer, plan)
        await until(is_writing)
        os.kill(running_stack(plan.job_path).supervisor_pid, signal.SIGKILL)
        await next_event(stack, EventKind.FAILED, "supervisor")
        run_file = (plan.job_path / "run.json").read_text()
    (plan.job_path / "run.json").write_text(run_file[: len(run_file) // 2])
    assert is_half_written(half_written)


def is_half_written(path: Path) -> bool:
    return path.exists() and path.read_text() == HALF


def leave_more_behind(job_dir: Path, weights: Path) -> None:
    """What other moments would have left."""
    temporary = weights / "v3-1.tmp"
    temporary.mkdir(exist_ok=True)
    (temporary / "model.safetensors").write_bytes(b"half")
    (job_dir / "config.tmp").write_text("{")
