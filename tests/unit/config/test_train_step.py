"""The parts of a train step: by what workflows say, by the file, and as a run has begun."""

from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, IMITATION, REINFORCEMENT, SFT, config, stage
from trinity.config.changes.plans import stage_changes
from trinity.config.checks.advice import advise
from trinity.config.plan.sizes import SEVERAL_SAMPLES, gives_several_samples
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE, WORKFLOWS
from trinity.run.launch.prepare import capped

OWN = """
from trinity.types import Experience
from trinity.workflows import Workflow
from trinity.workflows.step_wise import StepWiseRewardWorkflow

class Walk(StepWiseRewardWorkflow):
    max_step_num = 3

class Once(Workflow):
    def run(self) -> list[Experience]:
        return []

class Agent(Once):
    gives_several_samples = True
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with workflows of a user's own."""
    (tmp_path / "own_agents.py").write_text(OWN)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    return "own_agents"


def with_workflow(name: str, /, **buffer: object) -> StagePlan:
    return stage(buffer={"explorer_input": {"default_workflow_type": name}, **buffer})


@pytest.mark.parametrize(
    ("name", "unit"),
    [("Walk", "explore_step"), ("Agent", "explore_step"), ("Once", "rows"), ("Missing", "rows")],
)
def test_workflows_of_ones_own_say_what_a_step_is_made_of(own: str, name: str, unit: str) -> None:
    assert with_workflow(f"{own}.{name}").train_step == unit


def test_the_table_of_built_in_workflows_says_what_their_classes_say() -> None:
    said = {
        name for name in WORKFLOWS.builtins if WORKFLOWS.get(name).gives_several_samples is True
    }
    assert said == SEVERAL_SAMPLES
    assert gives_several_samples("sudoku_workflow")
    assert not gives_several_samples("math_workflow")


def test_a_step_of_one_sample_a_run_is_made_of_rows() -> None:
    assert stage().train_step == "rows"


def test_the_file_decides_before_the_workflow() -> None:
    assert stage(buffer={"train_step": "explore_step"}).train_step == "explore_step"
    assert with_workflow("sudoku_workflow", train_step="rows").train_step == "rows"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {
                "algorithm": {"algorithm_type": "mix"},
                "buffer": {
                    "trainer_input": {
                        "auxiliary_buffers": {"sft_dataset": {"path": "/data/sft.jsonl"}}
                    }
                },
            },
            "`sample_strategy: mix` adds rows of data",
        ),
        (
            {
                "buffer": {
                    "trainer_input": {"experience_buffer": {"replay_buffer": {"enable": True}}}
                }
            },
            "`replay_buffer` orders and repeats those of many",
        ),
    ],
)
def test_rows_of_another_origin_have_no_explore_step(
    changes: dict[str, dict[str, object]], said: str
) -> None:
    source = {"explorer_input": {"default_workflow_type": "sudoku_workflow"}}
    buffer = {**changes.get("buffer", {}), **source}
    assert stage(**{**changes, "buffer": buffer}).train_step == "rows"
    with pytest.raises(UserError, match=said):
        stage(**{**changes, "buffer": {**buffer, "train_step": "explore_step"}})


def test_stages_on_data_have_rows_whatever_the_file_says_above_them() -> None:
    buffer = {"train_step": "explore_step"}
    assert stage(SFT, buffer=buffer).train_step == "rows"
    plan = plan_experiment(config(buffer=buffer, stages=[IMITATION, REINFORCEMENT]))
    assert [one.train_step for one in plan.stages] == ["rows", "explore_step"]


def test_steps_versions_and_schedules_count_explore_steps() -> None:
    """The size of a batch, which cuts a step into updates, moves none of them."""
    for size in (0, 8, 100):
        plan = with_workflow("sudoku_workflow", train_batch_size=size)
        assert (plan.total_explore_steps, plan.total_train_steps) == (10, 10)
        assert [plan.required_version(step) for step in (1, 2, 3)] == [0, 1, 2]
    rows = with_workflow("sudoku_workflow", train_batch_size=8, train_step="rows")
    assert rows.total_train_steps == 40
    assert rows.required_version(2) == 4


@pytest.mark.parametrize(
    ("num_rows", "num_updates"), [(1, 1), (31, 1), (32, 1), (33, 2), (115, 4), (0, 1)]
)
def test_a_step_has_as_few_updates_as_the_size_of_a_batch_allows(
    num_rows: int, num_updates: int
) -> None:
    assert with_workflow("sudoku_workflow").num_updates(num_rows) == num_updates
    assert stage().num_updates(num_rows) == 1


def plan_of(unit: str) -> ExperimentPlan:
    source = {"explorer_input": {"default_workflow_type": "sudoku_workflow"}}
    return plan_experiment(config(buffer={"train_step": unit, "train_batch_size": 8, **source}))


def test_a_trial_counts_explore_steps() -> None:
    assert capped(plan_of("auto"), 3).stages[0].total_train_steps == 3


def test_a_step_that_another_key_makes_of_something_else_is_refused() -> None:
    """`auto` follows the workflow."""
    [before], [now] = (
        plan_experiment(
            config(buffer={"explorer_input": {"default_workflow_type": workflow}})
        ).stages
        for workflow in ("math_workflow", "sudoku_workflow")
    )
    assert (before.train_step, now.train_step) == ("rows", "explore_step")
    changes = stage_changes(before, now, lambda one, other: one == other)
    assert ("buffer.train_step", "impossible") in [(one.key, one.kind) for one in changes]


def test_what_a_step_is_made_of_does_not_change_under_a_run() -> None:
    [before], [now] = plan_of("rows").stages, plan_of("explore_step").stages
    changes = stage_changes(before, now, lambda one, other: one == other)
    assert [(one.key, one.kind) for one in changes] == [("buffer.train_step", "impossible")]
    [as_written] = plan_of("auto").stages
    assert stage_changes(now, as_written, lambda one, other: one == other) == ()


def test_a_workflow_that_splits_runs_is_said_where_sizes_were_written_for_rows() -> None:
    said = [line for line in advise(plan_of("auto")) if "buffer.train_step" in line]
    assert len(said) == 1
    assert "a train step is an explore step" in said[0]
    assert not [line for line in advise(plan_of("explore_step")) if "buffer.train_step" in line]
    usual = plan_experiment(config(GRPO))
    assert not [line for line in advise(usual) if "buffer.train_step" in line]
