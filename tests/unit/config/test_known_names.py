"""`trinity config check` knows the names of workflows and rewards, without importing ours."""

import os
from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.rft.checks.names import check_part_names


def check(**taskset: object) -> None:
    check_part_names(
        plan_experiment(config(buffer={"explorer_input": {"taskset": taskset}})).stages
    )


@pytest.mark.parametrize(
    ("taskset", "said"),
    [
        ({"default_workflow_type": "webshop_workflow"}, "MultiTurnWorkflow"),
        ({"default_workflow_type": "frozen_lake"}, "close to it: frozen_lake_workflow"),
        ({"default_reward_fn_type": "math_boxd_reward"}, "close to it: math_boxed_reward"),
        ({"default_workflow_type": "nowhere.Agent"}, "no module 'nowhere'"),
        (
            {"default_workflow_type": "agent", "workflow_args": {"comand": "a"}},
            "knows no workflow_args comand; it knows command,",
        ),
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
        "class Agent(Workflow):\n"
        "    def run(self): return []\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    check(default_workflow_type="RAFT_alfworld_workflow")
    check(default_workflow_type="async_math_boxed_workflow", default_reward_fn_type="math_reward")
    check(default_workflow_type="agent", workflow_args={"command": "a"})


def test_parts_of_ones_own_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts_that_are_none.py").write_text(
        "from trinity.rewards import RewardFn\n"
        "class Uncalled(RewardFn): ...\n"
        "def of_others(prompts, completions): ...\n"
        "class Idle: ...\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    for part, said in (
        ("Uncalled", "class without __call__"),
        ("of_others", "wants prompts, completions, which it is not given"),
    ):
        with pytest.raises(UserError, match=said):
            check(default_reward_fn_type=f"parts_that_are_none.{part}")
    with pytest.raises(UserError, match="not a subclass of"):
        check(default_workflow_type="parts_that_are_none.Idle")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Idle", "defines no run"),
        ("IdleAsync", "defines no run_async"),
        ("Abstract", "leaves score abstract"),
        ("Greedy", "a required argument: 'teacher'"),
        ("Modest", "unexpected keyword argument 'model'"),
    ],
)
def test_a_workflow_that_cannot_be_made_or_run_is_told(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halves.py").write_text(
        "from abc import ABC, abstractmethod\n"
        "from trinity.workflows import Workflow\n"
        "class Idle(Workflow): ...\n"
        "class IdleAsync(Workflow):\n"
        "    is_async = True\n"
        "    def run(self): return []\n"
        "class Abstract(Workflow, ABC):\n"
        "    def run(self): return []\n"
        "    @abstractmethod\n"
        "    def score(self): ...\n"
        "class Greedy(Workflow):\n"
        "    def __init__(self, *, task, model, teacher): ...\n"
        "    def run(self): return []\n"
        "class Modest(Workflow):\n"
        "    def __init__(self, task): ...\n"
        "    def run(self): return []\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=f"halves.{name} .*{said}"):
        check(default_workflow_type=f"halves.{name}")


def test_a_file_that_ends_the_program_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit('set MY_KEY first')\n")
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match=r"leaving.py, line 2: SystemExit: set MY_KEY first"):
        check()


@pytest.mark.parametrize("is_plugin_folder", [False, True])
def test_a_workflows_file_may_read_the_variables_of_its_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_plugin_folder: bool
) -> None:
    (tmp_path / "agent_with_a_key.py").write_text(
        "import os\n"
        "from trinity.workflows.math_workflow import MathWorkflow\n"
        "os.environ['KEY_OF_A_STAGE']\n"
        "class Agent(MathWorkflow): ...\n"
    )
    if is_plugin_folder:
        monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    else:
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
    taskset = {"default_workflow_type": "agent_with_a_key.Agent"}
    plan = config(
        buffer={"explorer_input": {"taskset": taskset}},
        explorer={"env_vars": {"KEY_OF_A_STAGE": "set"}},
    )
    check_part_names(plan_experiment(plan).stages)
    assert "KEY_OF_A_STAGE" not in os.environ
