"""A run that trains on what another one has stored, in that one's database."""

from collections.abc import Mapping
from pathlib import Path
from typing import Unpack

import pytest
from pydantic import JsonValue

from tests.support.model_free.experiment import Sections, experiment_plan
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.launch.resume import store_plan
from trinity.run.launch.stored_runs import SourceRuns

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
