"""A run that trains on what another one has stored, in that one's database."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import pytest
from pydantic import JsonValue

from tests.integration.inspect.conftest import trinity
from tests.support.model_free.ended_run import EndedRun
from tests.support.model_free.experiment import Sections, experiment_plan
from tests.support.model_free.stack import model_free_services
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.launch.resume import store_plan
from trinity.run.launch.retrain import without_explorer
from trinity.run.launch.run import LocalRun
from trinity.run.launch.stored_runs import SourceRuns, with_source_runs
from trinity.run.progress.lines import LineReporter

pytestmark = pytest.mark.timeout(300)


def taking(
    root: Path,
    *,
    source_stage: str = "",
    algorithm: Mapping[str, JsonValue] | None = None,
    **changes: Unpack[Sections],
) -> ExperimentPlan:
    """A run without an explorer, beside the one that `experiment_plan` makes."""
    stage: JsonValue = {
        "stage_name": "learn",
        "mode": "train",
        "algorithm": {"repeat_times": 2, "kl_loss_fn": "none", **(algorithm or {})},
    }
    buffer: JsonValue = {
        "total_steps": None,
        "trainer_input": {"experience_buffer": {"source_run": "run", "source_stage": source_stage}},
    }
    sections: Sections = {**changes, "stages": [stage], "buffer": buffer}
    return experiment_plan(root, name="taker", **sections)


@pytest.mark.thorough
async def test_it_runs_in_the_others_directory_and_tells_whose_samples_it_had(
    ended_run: EndedRun,
) -> None:
    plan = taking(ended_run.root)
    found = SourceRuns.from_plan(plan)
    assert found is not None and found.home == ended_run.plan.job_path
    lines: list[str] = []
    run = LocalRun(
        plan=plan,
        reporter=LineReporter(lines.append),
        home=found.home,
        services=model_free_services(among=without_explorer),
        complete=with_source_runs,
    )
    summary = await run.run_to_end()
    assert summary.steps == 8
    assert "[learn] trains on 64 experiences of stage rft of run model-free/run" in lines
    said, _, error = await trinity("lineage", "8", job_dir=plan.job_path)
    assert error is None
    assert "samples of stage rft of run model-free/run" in said
    rows, _, _ = await trinity("lineage", "8", "--json", job_dir=plan.job_path)
    assert rows.count('"source_run": "model-free/run"') == 8
    out, _, error = await trinity("lineage", "8", "--verify", job_dir=plan.job_path)
    assert (out, error) == ("steps 1 to 8: 64 rows with 64 turns: 64 matches\n", None)


def test_what_cannot_be_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    def refused(plan: ExperimentPlan) -> str:
        with pytest.raises(UserError) as error:
            SourceRuns.from_plan(plan)
        return str(error.value)

    source = experiment_plan(tmp_path)
    assert "checkpoints/model-free/run holds no run: explore first" in refused(taking(tmp_path))
    source.job_path.mkdir(parents=True)
    store_plan(source)
    assert SourceRuns.from_plan(taking(tmp_path)) is not None
    assert "the name in `source_stage: rtf`: did you mean `rft`?" in refused(
        taking(tmp_path, source_stage="rtf")
    )
    assert "is not a run of tenant else" in refused(taking(tmp_path, tenant="else"))
    assert "is not that of stage rft of run" in refused(
        taking(tmp_path, algorithm={"advantage_fn": "rloo"})
    )
