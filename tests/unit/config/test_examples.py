"""Every example in the repository is a configuration that can be planned."""

from pathlib import Path

import pytest

from trinity.config.loading.load import load_config
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_example_loads_and_plans(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    plan = plan_experiment(load_config(file))
    assert plan.stages
    assert ExperimentPlan.model_validate_json(plan.model_dump_json()) == plan
