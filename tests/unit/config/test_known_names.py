"""`trinity config check` knows the names of workflows and rewards, without importing ours."""

from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.config.known_names import check_known
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE


def check(**taskset: object) -> None:
    check_known(plan_experiment(config(buffer={"explorer_input": {"taskset": taskset}})))


@pytest.mark.parametrize(
    ("taskset", "said"),
    [
        ({"default_workflow_type": "webshop_workflow"}, "MultiTurnWorkflow"),
        ({"default_workflow_type": "frozen_lake"}, "close to it: frozen_lake_workflow"),
        ({"default_reward_fn_type": "math_boxd_reward"}, "close to it: math_boxed_reward"),
        ({"default_workflow_type": "nowhere.Agent"}, "no module 'nowhere'"),
    ],
)
def test_a_name_that_cannot_run_is_told_with_its_taskset(
    taskset: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError, match="stage `main`, taskset `train`: ") as caught:
        check(**taskset)
    assert said in str(caught.value)


def test_names_that_are_known_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agent_of_a_plugin.py").write_text(
        "from trinity.common.workflows import WORKFLOWS, Workflow\n"
        "@WORKFLOWS.register_module('RAFT_alfworld_workflow')\n"
        "class Agent(Workflow): ...\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    check(default_workflow_type="RAFT_alfworld_workflow")
    check(default_workflow_type="async_math_boxed_workflow", default_reward_fn_type="math_reward")


def test_parts_of_ones_own_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_that_are_none.py").write_text(
        "from trinity.rewards import RewardFn\n"
        "class Uncalled(RewardFn): ...\n"
        "def of_verl(data_source, solution_str): ...\n"
        "class Idle: ...\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    for part, said in (
        ("Uncalled", "class without __call__"),
        ("of_verl", "wants data_source, solution_str, which it is not given"),
    ):
        with pytest.raises(UserError, match=said):
            check(default_reward_fn_type=f"parts_that_are_none.{part}")
    with pytest.raises(UserError, match="no subclass of"):
        check(default_workflow_type="parts_that_are_none.Idle")
