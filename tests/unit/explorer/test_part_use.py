"""Rewards and auxiliary models that a user's workflow leaves out are told after the first step."""

from pathlib import Path
from typing import ClassVar

import pytest

from services.explorer.rollout.part_use import PartUse
from tests.unit.explorer.builders import build_plan
from tests.unit.explorer.hosting import made_by, runner_of
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.config.plan.stage_plan import StagePlan
from trinity.rft.common.experience import Experience
from trinity.rft.common.workflows.workflow import Workflow as TheirWorkflow
from trinity.types import JsonObject, JsonValue

FILE = """
from trinity.workflows.workflow import Workflow
from trinity.workflows.simple_workflow import SimpleWorkflow

class Alone(Workflow):
    def run(self):
        made = self.model.chat([{"role": "user", "content": "1+1="}])
        made[0].reward = 1.0
        return made

class AloneAsync(Workflow):
    is_async = True
    shares_loop = True
    async def run_async(self):
        made = await self.model.chat_async([{"role": "user", "content": "1+1="}])
        made[0].reward = 1.0
        return made

class Asking(SimpleWorkflow):
    pass

class AskingInProcess(Workflow):
    def run(self):
        made = self.model.chat([{"role": "user", "content": "1+1="}])
        made[0].reward = sum(self.task.reward(response="2", truth="2").values())
        return made
"""


class Theirs(TheirWorkflow):
    """Written for Trinity-RFT; scores by itself."""

    asks: ClassVar[bool] = False

    def run(self) -> list[Experience]:
        answers = self.model.chat([{"role": "user", "content": "1+1="}])
        for answer in answers:
            answer.reward = 1.0
            if self.asks:
                assert self.task.reward_fn is not None
                self.task.reward_fn()(answer.response_text, truth="2")
        return answers


class TheirsAsking(Theirs):
    asks = True


def told_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("the reward of taskset")]


def plan_of(folder: Path, **sections: JsonValue) -> StagePlan:
    workflow = f"{__name__}.Theirs"
    taskset: JsonObject = {"default_workflow_type": workflow}
    explored: JsonObject = {"taskset": taskset, **sections}
    return build_plan(folder, buffer={"batch_size": 1, "explorer_input": explored}).stages[0]


def test_each_part_without_a_call_gets_one_sentence(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    name = plan.tasksets[0].name
    use = PartUse(plan)

    def after(called_reward: bool | None, *called: bool) -> list[str]:
        return use.after_run(name, called_reward=called_reward, called_models=called)

    assert after(False, False, True) == []
    reward, model = after(False, False, False)
    assert reward.startswith(f"the reward of taskset `{name}` was called by none of its first 2")
    assert model.startswith("`explorer.auxiliary_models[0]` was asked by none of the first 2 runs")
    assert after(False, False, False) == []


@pytest.mark.parametrize("known", [True, None])
def test_parts_that_any_run_called_are_used(known: bool | None, tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    use = PartUse(plan)
    name = plan.tasksets[0].name
    seen: list[str] = []
    for called in (known, False if known else None):
        seen += use.after_run(name, called_reward=called, called_models=[bool(known)] * 2)
    assert [text for text in seen if "reward of" in text] == []
    assert len(seen) == (0 if known else 2)


def test_models_are_judged_when_every_taskset_has_had_runs(tmp_path: Path) -> None:
    held: JsonObject = {"name": "held", "path": str(tmp_path / "tasks.jsonl")}
    plan = plan_of(tmp_path, eval_tasksets=[held])
    use, name = PartUse(plan), plan.tasksets[0].name
    assert use.after_run("held", called_reward=True, called_models=[True]) == []
    for _ in range(2):
        assert use.after_run(name, called_reward=True, called_models=[False]) == []
    early = PartUse(plan)
    for _ in range(2):
        assert early.after_run(name, called_reward=True, called_models=[False]) == []


@pytest.mark.parametrize(
    ("workflow", "is_told"),
    [("Alone", True), ("AloneAsync", True), ("Asking", False), ("AskingInProcess", False)],
)
async def test_users_workflows_are_watched_in_processes_and_here(
    workflow: str, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with plugin_folder(tmp_path, watched=FILE):
        async with user_processes() as processes:
            results = [
                await outcome_of(
                    tmp_path,
                    processes=pool,
                    batch_size=1,
                    repeat_times=1,
                    default_workflow_type=f"watched.{workflow}",
                )
                for pool in (processes, None)
            ]
    assert not any(result.failure for result in results)
    assert len(told_in(caplog)) == 2 * is_told


@pytest.mark.parametrize(("kind", "is_told"), [(Theirs, True), (TheirsAsking, False)])
async def test_workflows_of_trinity_rft_are_watched(
    kind: type[Theirs], is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = runner_of(tmp_path, f"{__name__}.{kind.__name__}")
    results = [result for _ in range(4) for result in await made_by(runner, 0, 1)]
    assert not any(result.failure for result in results)
    assert len(told_in(caplog)) == is_told
