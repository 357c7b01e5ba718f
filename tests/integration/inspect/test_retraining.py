"""Stored batches, trained again by a stack without an explorer, give the same weights."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.model_free.ended_run import EndedRun
from tests.support.model_free.experiment import experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import RunFailed, UserError
from trinity.run.launch.retrain import (
    RetrainSource,
    RetrainSteps,
    retraining_plan,
    without_explorer,
)
from trinity.run.launch.run import LocalRun
from trinity.run.progress.lines import LineReporter

pytestmark = pytest.mark.timeout(300)
SAME = "[rft] version {} has the same weights as before, bit for bit"


@dataclass
class Again:
    """A run whose batches are trained again, and what that says."""

    plan: ExperimentPlan
    lines: list[str] = field(default_factory=list)

    async def train(self, first: int, last: int) -> None:
        self.lines.clear()
        made = retraining_plan(
            self.plan, stage=None, steps=RetrainSteps(first=first, last=last), name=None
        )
        run = LocalRun(
            plan=made,
            reporter=LineReporter(self.lines.append),
            home=self.plan.job_path,
            services=model_free_services(among=without_explorer),
            complete=RetrainSource(plan=self.plan).complete_plan,
        )
        await run.run_to_end()


@pytest.mark.thorough
async def test_stored_batches_give_the_same_weights_without_an_explorer(
    ended_run: EndedRun,
) -> None:
    again = Again(ended_run.plan)
    job = again.plan.job_path
    log = job / "log" / "explorer.log"
    before = log.read_text()
    await again.train(1, 8)
    assert SAME.format(8) in again.lines
    await again.train(7, 8)
    assert SAME.format(8) in again.lines, "it began from the checkpoint of step 6"
    await again.train(1, 3)
    assert SAME.format(3) in again.lines, "though the run had gone on"
    assert log.read_text() == before, "there was no explorer"
    for steps in ("1-8", "7-8", "1-3"):
        assert (job / "retrained" / f"rft-{steps}" / "summary.json").exists()
    with pytest.raises(RunFailed, match="no checkpoint of step 4 to begin step 5 from: begin with"):
        await again.train(5, 8)


async def test_a_run_that_is_not_there_cannot_be_trained_again(tmp_path: Path) -> None:

    plan = experiment_plan(tmp_path)
    with pytest.raises(UserError, match="holds no run whose batches could be trained again"):
        retraining_plan(plan, stage=None, steps=RetrainSteps(first=1, last=2), name=None)
