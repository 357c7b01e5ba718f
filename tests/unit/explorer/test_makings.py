"""What users' constructors do holds up no event loop, and takes from the attempt's time."""

import threading
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.explorer.runs import outcome_of
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.rewards.reward import RewardFn
from trinity.types import Experience
from trinity.workflows.model import ModelWrapper
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow


class Environment(Workflow):
    """Builds what it plays in when it is made."""

    made_in: ClassVar[list[str]] = []

    def __init__(self, *, task: Task, model: ModelWrapper) -> None:
        super().__init__(task=task, model=model)
        self.made_in.append(threading.current_thread().name)

    def run(self) -> list[Experience]:
        self.made_in.append(threading.current_thread().name)
        [experience] = self.model.chat([{"role": "user", "content": "?"}])
        experience.reward = 1.0
        return [experience]


class Moody(SimpleWorkflow):
    """Each instance says for itself whether it blocks."""

    @property
    def is_async(self) -> bool:  # type: ignore[override]
        return False

    def run(self) -> list[Experience]:
        [experience] = self.model.chat(self.messages())
        experience.reward = 2.0
        return [experience]


class Loading(RewardFn):
    """Loads something when it is made."""

    made_in: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.made_in.append(threading.current_thread().name)

    def __call__(self, *, response: str) -> dict[str, float]:
        return {"length": float(len(response))}


class Quick(Loading):
    """Says that it never waits."""

    in_thread = False


class Hanging(RewardFn):
    """Waits for a server that does not answer."""

    release = threading.Event()

    def __init__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.release.wait()

    def __call__(self, *, response: str) -> dict[str, float]:
        return {"length": float(len(response))}


@pytest.fixture(autouse=True)
def registered() -> None:
    WORKFLOWS.register("test_environment", Environment)
    WORKFLOWS.register("test_moody", Moody)
    REWARDS.register("test_loading", Loading)
    REWARDS.register("test_quick", Quick)
    REWARDS.register("test_hanging", Hanging)
    Environment.made_in.clear()
    Loading.made_in.clear()


async def test_a_workflow_that_may_block_is_made_in_its_thread(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_environment")
    assert (outcome.failure, Environment.made_in) == ("", ["test", "test"])


async def test_a_workflow_may_say_of_each_instance_whether_it_blocks(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_workflow_type="test_moody")
    assert outcome.failure == ""
    assert [one.reward for one in outcome.experiences] == [2.0]


async def test_a_reward_that_may_wait_is_made_where_it_scores(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_reward_fn_type="test_loading")
    assert outcome.failure == ""
    of_the_stage, *of_runs = Loading.made_in
    assert of_runs == ["reward"], of_the_stage


async def test_a_reward_that_never_waits_is_made_at_once(tmp_path: Path) -> None:
    outcome = await outcome_of(tmp_path, default_reward_fn_type="test_quick")
    assert outcome.failure == ""
    assert set(Loading.made_in) == {threading.main_thread().name}


async def test_making_a_reward_takes_no_longer_than_the_attempt_may(tmp_path: Path) -> None:
    outcome = await outcome_of(
        tmp_path, timeout_seconds=0.05, default_reward_fn_type="test_hanging"
    )
    Hanging.release.set()
    assert "more than 0.05 s" in outcome.failure
