"""Workflows and rewards that cannot do their part end the stage before an engine is started."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.explorer.conftest import World
from tests.integration.explorer.peers import assignments
from trinity.plugins import PLUGIN_DIRS_VARIABLE

PATIENCE_SECONDS = 60.0


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin folder."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(folder))
    return folder


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"default_workflow_type": "nowhere.Agent"}, "no module 'nowhere'"),
        ({"default_workflow_type": "broken_agent.Agent"}, "broken_agent.py, line 1"),
        ({"default_workflow_type": "whole_agent.Agnet"}, "close to it: Agent"),
        ({"default_workflow_type": "simple_workflwo"}, "close to it: simple_workflow"),
        ({"default_reward_fn_type": "whole_agent.score"}, "whole_agent.py defines no 'score'"),
    ],
)
async def test_a_part_that_is_broken_is_named_before_an_engine_is_started(
    keys: dict[str, str], said: str, world: World, plugins: Path
) -> None:
    world.use_parts(**keys)  # planned where the files are others
    (plugins / "broken_agent.py").write_text("import a_package_that_nobody_has\n")
    (plugins / "whole_agent.py").write_text(
        "from trinity.workflows import Workflow\n"
        "class Agent(Workflow):\n"
        "    def run(self): return []\n"
    )
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    (reason,) = world.synchronizer.failures
    assert reason.startswith("stage `main`, taskset `taskset`: ")
    assert said in reason
    assert world.num_engines_started == 0


async def test_a_workflows_file_may_read_the_variables_of_its_stage(
    world: World, plugins: Path
) -> None:
    agent = {"default_workflow_type": "agent_with_a_variable.Agent"}
    world.plan_with(
        buffer={"explorer_input": {"taskset": dict(agent)}},
        explorer={"env_vars": {"TRINITY_TEST_OF_STAGE": "set"}},
    )
    (plugins / "agent_with_a_variable.py").write_text(
        "import os\n"
        "from trinity.workflows.math_workflow import MathWorkflow\n"
        "os.environ['TRINITY_TEST_OF_STAGE']\n"
        "class Agent(MathWorkflow): ...\n"
    )
    world.buffer.pending = assignments(1)
    async with asyncio.timeout(PATIENCE_SECONDS), world.explorer():
        await world.finished()
    assert world.synchronizer.finished == ["main"]
