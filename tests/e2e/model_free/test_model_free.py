"""The stack without a model behaves as the one with a model does."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.integration.inspect.conftest import trinity
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.shared_stack import ON_IT, SharedStack
from tests.support.model_free.stack import model_free_services
from trinity.api.v1 import buffer_pb2
from trinity.run.launch.run import LocalRun, RunInterrupted
from trinity.run.progress.lines import LineReporter
from trinity.run.progress.reporter import make_reporter
from trinity.run.progress.view import RunView
from trinity.run.runs import newest_checkpoint_step
from trinity.weights.manifest import MANIFEST_NAME, Manifest, verify
from trinity.weights.stored import newest_model

pytestmark = ON_IT


async def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    tmp_path: Path, shared_stack: SharedStack, calm_weights: str
) -> None:
    plans = [experiment_plan(tmp_path, name=f"seed-{seed}", seed=seed) for seed in (7, 8)]
    again, other = [weights_of(await run_to_end(shared_stack.synchronizer, plan)) for plan in plans]
    assert again == calm_weights
    assert other != calm_weights


class PressesAt(LineReporter):
    """Shows a run's lines, and presses Ctrl-C once a step has ended."""

    def __init__(self, step: int | None) -> None:
        super().__init__(lambda line: self.said.append(line))
        self.said: list[str] = []
        self._press_at = step
        self.replayed: list[int] = []

    def event(self, view: RunView, event: buffer_pb2.ProgressEvent) -> None:
        super().event(view, event)
        if event.WhichOneof("event") != "step":
            return
        if event.step.replayed:
            self.replayed.append(event.step.step)
        if self._press_at is not None and event.step.step >= self._press_at:
            self._press_at = None
            os.kill(os.getpid(), signal.SIGINT)


async def test_what_was_trained_before_ctrl_c_is_not_trained_again(
    tmp_path: Path, calm_weights: str
) -> None:
    plan = experiment_plan(tmp_path, trainer={"save_interval": 0})
    reporter = PressesAt(3)
    run = LocalRun(plan=plan, reporter=reporter, services=model_free_services())
    with pytest.raises(RunInterrupted):
        await run.run_to_end()
    [saved] = [line for line in reporter.said if line.endswith(" is saved as a checkpoint")]
    step = int(saved.split()[1])
    assert newest_checkpoint_step(plan.job_path, "rft") == step >= 3
    again = PressesAt(None)
    run = LocalRun(plan=plan, reporter=again, services=model_free_services())
    assert (await run.run_to_end()).state == "finished"
    assert again.replayed == []
    ended = newest_model(plan.job_path, "rft")
    assert ended is not None
    manifest = Manifest.model_validate_json((ended.path / MANIFEST_NAME).read_bytes())
    assert (ended.version, manifest.weights_blake3) == (8, calm_weights)
    out, _, _ = await trinity("lineage", "8", "--verify", job_dir=plan.job_path)
    assert out == "steps 1 to 8: 64 rows with 64 turns: 64 matches\n", "over both lives"


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
