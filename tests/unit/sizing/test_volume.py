"""The volume is what the plan that services act on will make."""

import pytest

from tests.unit.config.builders import GRPO, SFT, stage
from trinity.config.sizing.volume import foreign_part, max_concurrent_runs, run_volume


def test_steps_tasks_experiences_and_tokens() -> None:
    found = run_volume(stage(GRPO), None)
    assert found is not None
    assert (found.explore_steps, found.tasks, found.experiences) == (10, 40, 320)
    assert found.train_steps == 10
    assert (found.trained_rows, found.rollout_tokens) == (320, 320 * 24)


def test_epochs_need_the_number_of_rows() -> None:
    by_epochs = stage(GRPO, buffer={"total_steps": None, "total_epochs": 3})
    assert run_volume(by_epochs, None) is None
    found = run_volume(by_epochs, 10)
    assert found is not None
    assert found.explore_steps == by_epochs.num_explore_steps(10) == 7
    assert found.train_steps == by_epochs.num_train_steps(10)


def test_rows_of_a_file_are_trained_without_rollout() -> None:
    found = run_volume(stage(SFT), None)
    assert found is not None
    assert (found.explore_steps, found.tasks, found.experiences) == (0, 0, 0)
    assert (found.train_steps, found.trained_rows) == (5, 80)


@pytest.mark.parametrize(
    ("interval", "on_startup", "times"),
    [(5, True, 3), (5, False, 2), (4, True, 4), (100, False, 1)],
)
def test_evaluations_are_counted(interval: int, on_startup: bool, times: int) -> None:
    evaluated = stage(
        GRPO,
        buffer={
            "explorer_input": {"eval_tasksets": [{"name": "held_out", "path": "/data/t.jsonl"}]}
        },
        explorer={"eval_interval": interval, "eval_on_startup": on_startup},
    )
    found = run_volume(evaluated, None)
    assert found is not None
    assert found.evaluations == times


def test_runs_that_may_ask_tools_or_judges_are_as_many_as_runners() -> None:
    ours = stage(GRPO, explorer={"runner_per_model": 8})
    assert (foreign_part(ours), max_concurrent_runs(ours)) == ("", 8 * 64)
    [taskset] = ours.tasksets
    own_workflow = ours.model_copy(
        update={"tasksets": (taskset.model_copy(update={"workflow": "mine.Workflow"}),)}
    )
    own_reward = ours.model_copy(
        update={"tasksets": (taskset.model_copy(update={"reward": "mine.Judge"}),)}
    )
    for foreign, named in ((own_workflow, "mine.Workflow"), (own_reward, "mine.Judge")):
        assert named in foreign_part(foreign)
        assert max_concurrent_runs(foreign) == 8


def test_a_configured_number_holds_for_all_runs() -> None:
    ours = stage(GRPO, explorer={"runner_per_model": 8, "runs_per_runner": 3})
    assert max_concurrent_runs(ours) == 24
