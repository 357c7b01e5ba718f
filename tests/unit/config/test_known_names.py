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
